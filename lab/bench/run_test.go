package bench

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/bench/comparison"
	"github.com/smcgw/smcgw/lab/bench/paper"
	"github.com/smcgw/smcgw/lab/testnet"
)

// program is the smcgw that hosts run: that of the Makefile, or one made here.
func program(t *testing.T) string {
	if file := os.Getenv("SMCGW_BINARY"); file != "" {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	file := filepath.Join(t.TempDir(), "smcgw")
	out, err := exec.Command("go", "build", "-o", file, "github.com/smcgw/smcgw/cmd/smcgw").CombinedOutput()
	require.NoError(t, err, string(out))
	return file
}

// One short round of a few works on all hosts: every way is there, is what it
// claims to be, and everything is gone afterwards.
func TestTinyComparison(t *testing.T) {
	testnet.Require(t, "root", "bpf", "redis-benchmark")
	var log strings.Builder
	r, err := Run(t.Context(), Options{
		Executable: program(t), Rounds: 1, Duration: 200 * time.Millisecond, Log: &log, Command: "tiny",
		Only: []string{"redis-c1", "past-connect", "connections"},
	})
	require.NoError(t, err, log.String())
	t.Log(log.String())
	for _, s := range r.Series {
		require.NotEmpty(t, s.Values, "%s, %s", s.Work, s.Variant)
		if s.Variant == comparison.TCP {
			require.Equal(t, len(s.Values), s.Spread().N, "%s: %s", s.Work, s.Note)
		}
	}
	require.NotEmpty(t, r.Machine.CongestionControl)

	var line, details strings.Builder
	require.ErrorIs(t, Ratios([]*paper.Report{r}, &line, &details), ErrMissing, "only some works were done")
	got := map[string]*float64{}
	require.NoError(t, json.Unmarshal([]byte(line.String()), &got))
	require.Len(t, got, len(keys))
	for _, k := range keys {
		require.Contains(t, got, k)
	}
	t.Log(details.String())
}

func TestUnknownWork(t *testing.T) {
	o := Options{Only: []string{"nonsense"}}
	_, _, err := o.choose(nil)
	require.ErrorContains(t, err, `no work is called "nonsense"; there are bulk,`)
	o = Options{Variants: []string{"nonsense"}}
	_, _, err = o.choose(nil)
	require.ErrorContains(t, err, "nothing to compare")
}
