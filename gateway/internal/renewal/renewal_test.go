package renewal

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// A configuration that is refused is in the status and the log, also where the program was
// replaced meanwhile and another gateway would take over with it.
func TestRefused(t *testing.T) {
	var log strings.Builder
	r := &Renewal{
		Log: slog.New(slog.NewTextHandler(&log, nil)), Reloads: new(Reloads), Program: &process.Program{Path: "/proc/self/exe"},
		Load: func() (config.Config, error) { return config.Config{}, errors.New("line 3: mdoe: unknown field") },
	}
	for n, attempt := range []func() error{
		r.Again,
		func() error { _, err := r.Successor(true); return err },
	} {
		require.ErrorContains(t, attempt(), "mdoe")
		var st admin.Status
		r.Reloads.Tell(&st)
		require.Contains(t, st.Degraded, admin.ConfigRefused)
		require.Contains(t, st.Notes[0], "mdoe")
		require.Equal(t, n+1, strings.Count(log.String(), "configuration refused"))
		var s admin.Snapshot
		r.Reloads.AddTo(&s)
		require.EqualValues(t, n+1, s.Reloads["refused"])
	}
}
