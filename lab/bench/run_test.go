package bench

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/comparison"
	"github.com/smcgw/smcgw/lab/testnet"
)

// One short round of a few works on all hosts: every way is there, is what it
// claims to be, and everything is gone afterwards.
func TestTinyComparison(t *testing.T) {
	testnet.Require(t, "root", "bpf", "redis-benchmark")
	var log strings.Builder
	r, err := Run(t.Context(), Options{
		Executable: testnet.Program(t), Rounds: 1, Duration: 200 * time.Millisecond, Log: &log, Command: "tiny",
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
	require.ErrorIs(t, Ratios([]*comparison.Report{r}, &line, &details), ErrMissing, "only some works were done")
	got := map[string]*float64{}
	require.NoError(t, json.Unmarshal([]byte(line.String()), &got))
	require.Len(t, got, len(keys))
	for _, k := range keys {
		require.Contains(t, got, k)
	}
	t.Log(details.String())
}

// A quick comparison has a report with each congestion control, and a line with every key: those
// of the works that were done have a number.
func TestQuick(t *testing.T) {
	testnet.Require(t, "root", "bpf", "haproxy", "iperf3", "sockperf", "nginx", "wrk")
	list := counted(t, func() ([]*comparison.Report, error) {
		return Quick(t.Context(), Options{
			Executable: testnet.Program(t), Rounds: 1, Duration: 200 * time.Millisecond, Log: t.Output(), Command: "quick",
			Only:     []string{"connections", "beside-ping"},
			Variants: []string{comparison.TCP, TwoProxies, Shm, Soft1500},
		})
	})
	require.Equal(t, Usual, list[0].Machine.CongestionControl)
	var line, details strings.Builder
	require.ErrorIs(t, Ratios(list, &line, &details), ErrMissing, "only some works were done")
	t.Log(details.String())
	got := map[string]*float64{}
	require.NoError(t, json.Unmarshal([]byte(line.String()), &got))
	for _, key := range keys {
		require.Contains(t, got, key)
		if slices.Contains([]string{"setup_shm_vs_chain", "setup_soft_vs_chain", "beside_bulk_p99_vs_tcp"}, key) {
			require.NotNil(t, got[key], key)
			require.Positive(t, *got[key], key)
			continue
		}
		require.Nil(t, got[key], "%s: nothing of it was done", key)
	}
}

func TestUnknownWork(t *testing.T) {
	o := Options{Only: []string{"nonsense"}}
	_, _, err := o.choose(nil)
	require.ErrorContains(t, err, `no work is called "nonsense"; there are bulk,`)
	o = Options{Variants: []string{"nonsense"}}
	_, _, err = o.choose(nil)
	require.ErrorContains(t, err, "nothing to compare")
}

// counted measures until a round of every series counts: on a busy machine a connection goes another way now and then, and its
// round does not count.
func counted(t *testing.T, measure func() ([]*comparison.Report, error)) (list []*comparison.Report) {
	t.Helper()
	for range 5 {
		before := list
		var err error
		list, err = measure()
		require.NoError(t, err)
		require.NotEmpty(t, list)
		for i := range min(len(before), len(list)) {
			follow(before[i], list[i])
		}
		if !slices.ContainsFunc(list, func(r *comparison.Report) bool { return incomplete(r) != "" }) {
			break
		}
	}
	for _, r := range list {
		require.Empty(t, incomplete(r))
	}
	return list
}

// follow puts the rounds of an earlier report before those of a report.
func follow(earlier, r *comparison.Report) {
	for i := range r.Series {
		s := &r.Series[i]
		at := slices.IndexFunc(earlier.Series, func(e comparison.Series) bool { return e.Work == s.Work && e.Variant == s.Variant })
		if at >= 0 {
			s.Values = slices.Concat(earlier.Series[at].Values, s.Values)
		}
	}
}

// incomplete names a series of a report of which no round counts; empty: there is none.
func incomplete(r *comparison.Report) string {
	for _, s := range r.Series {
		if s.Spread().N == 0 {
			return fmt.Sprintf("%s, %s: %s", s.Work, s.Variant, s.Note)
		}
	}
	return ""
}
