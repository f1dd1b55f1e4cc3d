package bench

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/bench/comparison"
	"github.com/smcgw/smcgw/lab/bench"
	"github.com/smcgw/smcgw/lab/testnet"
)

// TestQuick is make bench-quick with one short round of a few works: its line has
// every key, those of the works that were done have a number, and each congestion
// control has a report. What the numbers are is for longer rounds to say.
func TestQuick(t *testing.T) {
	testnet.Require(t, "root", "bpf", "haproxy", "iperf3", "sockperf")
	o := bench.Options{
		Executable: program(t), Rounds: 1, Duration: 200 * time.Millisecond, Log: io.Discard, Command: "quick",
		Only:     []string{"connections", "beside-ping"},
		Variants: []string{comparison.TCP, bench.TwoProxies, bench.Shm, bench.Soft1500},
	}
	list, err := bench.Quick(t.Context(), o)
	require.NoError(t, err)
	require.NotEmpty(t, list)
	require.Equal(t, bench.Usual, list[0].Machine.CongestionControl)
	for _, r := range list {
		for _, s := range r.Series {
			require.Equal(t, len(s.Values), s.Spread().N, "%s, %s: %s", s.Work, s.Variant, s.Note)
		}
	}
	var line, details strings.Builder
	require.ErrorIs(t, bench.Ratios(list, &line, &details), bench.ErrMissing, "only some works were done")
	t.Log(details.String())
	got := map[string]*float64{}
	require.NoError(t, json.Unmarshal([]byte(line.String()), &got))
	for _, key := range []string{
		"inproc_bulk_vs_tcp", "inproc_cpu_vs_tcp", "inproc_ping_p50_vs_tcp", "inproc_ping_spin_p50_vs_tcp", "inproc_redis_c1_vs_tcp",
		"inproc_redis_c50_vs_tcp", "inproc_redis_p16_vs_tcp", "inproc_http_vs_tcp", "inproc_connect_vs_tcp", "inproc_beside_bulk_p99_vs_tcp",
		"p1_vs_tcp", "p1_vs_chain", "p1_cpu_vs_chain", "p2_vs_tcp", "p2_vs_chain", "p2_latency_profile_vs_tcp",
		"p3_c1_vs_chain", "p3_c50_vs_chain", "p3_p16_vs_chain", "p3_auto_vs_tcp", "p4_throughput", "p4_rtt", "p4_connect",
		"p5_1500", "p5_9000", "cubic_shm_vs_tcp", "cubic_shm_cpu_vs_tcp", "cubic_soft_vs_tcp", "auto_worst_vs_tcp",
	} {
		require.Contains(t, got, key)
		require.Nil(t, got[key], "%s: nothing of it was done", key)
	}
	for _, key := range []string{"setup_shm_vs_chain", "setup_soft_vs_chain", "beside_bulk_p99_vs_tcp"} {
		require.NotNil(t, got[key], key)
		require.Positive(t, *got[key], key)
	}
}

// program is the smcgw that hosts run: that of the Makefile, or one made here.
func program(tb testing.TB) string {
	if file := os.Getenv("SMCGW_BINARY"); file != "" {
		return file
	}
	file := filepath.Join(tb.TempDir(), "smcgw")
	out, err := exec.Command("go", "build", "-o", file, "github.com/smcgw/smcgw/cmd/smcgw").CombinedOutput()
	require.NoError(tb, err, string(out))
	return file
}
