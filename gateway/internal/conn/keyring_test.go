package conn

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// TestKeyring: a change is one only where keys differ, messages have a random part where
// there are keys, and the log tells of other keys once in a while.
func TestKeyring(t *testing.T) {
	var log bytes.Buffer
	r := NewKeyring(slog.New(slog.NewTextHandler(&log, nil)))
	require.Empty(t, r.Load())
	require.Zero(t, r.random())
	require.False(t, r.Set(nil))
	keys := negotiate.Keys{[]byte("0123456789abcdef")}
	require.True(t, r.Set(keys))
	require.False(t, r.Set(negotiate.Keys{[]byte("0123456789abcdef")}))
	require.Equal(t, keys, r.Load())
	require.NotZero(t, r.random())
	require.NotEqual(t, r.random(), r.random())
	for range 3 {
		r.NoCommonKey(netip.MustParseAddr("10.0.0.2"), report.SideServer)
	}
	require.Equal(t, 1, strings.Count(log.String(), "no key in common"), log.String())
}
