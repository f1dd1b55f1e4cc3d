package bench

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/bench/report"
	"github.com/smcgw/smcgw/lab/bench/paper"
)

// keys are an interface: others read them.
var keys = []string{
	"p1_vs_tcp", "p1_vs_chain", "p1_cpu_vs_chain", "p2_vs_tcp", "p2_vs_chain", "p2_latency_profile_vs_tcp",
	"p3_c1_vs_chain", "p3_c50_vs_chain", "p3_p16_vs_chain", "p3_auto_vs_tcp",
	"p4_throughput", "p4_rtt", "p4_connect", "p5_1500", "p5_9000",
}

// complete is a report in which every variant is twice the base, the third
// round of some apart.
func complete() *paper.Report {
	r := &paper.Report{}
	seen := map[[2]string]bool{}
	add := func(work, variant string, values ...float64) {
		if !seen[[2]string{work, variant}] {
			seen[[2]string{work, variant}] = true
			r.Series = append(r.Series, report.Series{Work: work, Variant: variant, Values: values})
		}
	}
	for _, t := range targets {
		for _, q := range t.of {
			add(q.metric, q.base, 1, 2, 4)
			add(q.metric, q.variant, 2, 4, math.NaN())
		}
	}
	return r
}

func TestRatios(t *testing.T) {
	var line, details strings.Builder
	require.NoError(t, Ratios(complete(), &line, &details))
	require.True(t, strings.HasSuffix(line.String(), "\n"))
	require.Equal(t, 1, strings.Count(line.String(), "\n"))
	got := map[string]float64{}
	require.NoError(t, json.Unmarshal([]byte(line.String()), &got))
	require.Len(t, got, len(keys))
	for _, k := range keys {
		require.InDelta(t, 2, got[k], 1e-9, k)
		require.Contains(t, details.String(), k+": 2.000 (2.00 – 2.00, 2 rounds)")
	}
}

// A promise about several is kept as well as by the worst.
func TestRatiosTakeTheWorst(t *testing.T) {
	r := complete()
	for i, s := range r.Series {
		switch {
		case s.Work == pastBulk.Name && s.Variant == Released:
			r.Series[i].Values = []float64{0.5, 1, 2}
		case s.Work == pastConnect.Name && s.Variant == Attached:
			r.Series[i].Values = []float64{7, 14, 28}
		}
	}
	var line strings.Builder
	require.NoError(t, Ratios(r, &line, &strings.Builder{}))
	require.Contains(t, line.String(), `"p4_throughput":0.5`)
	require.Contains(t, line.String(), `"p4_connect":7`)
}

// A ratio that is missing is null, and makes the command fail.
func TestRatiosMissing(t *testing.T) {
	r := complete()
	for i, s := range r.Series {
		if s.Work == redisC1.Name && s.Variant == Auto {
			r.Series[i].Values = []float64{math.NaN(), math.NaN(), math.NaN()}
		}
	}
	var line, details strings.Builder
	err := Ratios(r, &line, &details)
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "p3_auto_vs_tcp")
	require.Contains(t, line.String(), `"p3_auto_vs_tcp":null`)
	require.Contains(t, details.String(), "no ratio of redis -c1, auto to tcp")
	require.ErrorIs(t, Ratios(&paper.Report{}, &line, &details), ErrMissing)
}
