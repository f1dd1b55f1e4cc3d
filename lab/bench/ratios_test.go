package bench

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/comparison"
)

// keys are an interface: others read them.
var keys = []string{
	"inproc_bulk_vs_tcp", "inproc_cpu_vs_tcp", "inproc_ping_p50_vs_tcp", "inproc_ping_spin_p50_vs_tcp",
	"inproc_redis_c1_vs_tcp", "inproc_redis_c50_vs_tcp", "inproc_redis_p16_vs_tcp", "inproc_http_vs_tcp",
	"inproc_connect_vs_tcp", "inproc_beside_bulk_p99_vs_tcp",
	"p1_vs_tcp", "p1_vs_chain", "p1_cpu_vs_chain", "p2_vs_tcp", "p2_vs_chain",
	"p3_c1_vs_chain", "p3_c50_vs_chain", "p3_p16_vs_chain", "p3_auto_vs_tcp",
	"p4_throughput", "p4_rtt", "p4_connect", "p5_1500", "p5_9000",
	"cubic_shm_vs_tcp", "cubic_shm_cpu_vs_tcp", "cubic_soft_vs_tcp", "setup_shm_vs_chain", "setup_soft_vs_chain",
	"beside_bulk_p99_vs_tcp", "auto_worst_vs_tcp",
}

// betterOf is the direction of a metric.
func betterOf(metric string) comparison.Better {
	for _, w := range works() {
		for _, m := range w.metrics() {
			if m.Name == metric {
				return m.Better
			}
		}
	}
	panic("no work measures " + metric)
}

// complete is a report with each congestion control in which every variant is twice
// as good or bad as a key says it when the number is higher, the third round of some
// apart.
func complete() []*comparison.Report {
	list := []*comparison.Report{{}, {}}
	list[0].Machine.CongestionControl, list[1].Machine.CongestionControl = Usual, "bbr"
	seen := map[quotient]bool{}
	add := func(q quotient, variant string, values ...float64) {
		at := quotient{pass: q.pass, metric: q.metric, variant: variant}
		if !seen[at] {
			seen[at] = true
			r := q.pass.of(list)
			r.Series = append(r.Series, comparison.Series{Work: q.metric, Variant: variant, Better: betterOf(q.metric), Values: values})
		}
	}
	for _, t := range targets {
		for _, q := range t.of {
			if betterOf(q.metric) == t.better {
				add(q, q.base, 2, 4, 8)
				add(q, q.variant, 4, 8, math.NaN())
			} else { // of auto, which is an own way
				add(q, q.base, 2, 4, 8)
				add(q, q.variant, 1, 2, math.NaN())
			}
		}
	}
	return list
}

func TestRatios(t *testing.T) {
	var line, details strings.Builder
	require.NoError(t, Ratios(complete(), &line, &details))
	require.True(t, strings.HasSuffix(line.String(), "\n"))
	require.Equal(t, 1, strings.Count(line.String(), "\n"))
	got := map[string]float64{}
	require.NoError(t, json.Unmarshal([]byte(line.String()), &got))
	require.Len(t, got, len(keys))
	at := 0
	for _, k := range keys {
		require.InDelta(t, 2, got[k], 1e-9, k)
		require.Contains(t, details.String(), k+": 2.000 (2.00 – 2.00, 2 rounds)")
		next := strings.Index(line.String(), `"`+k+`":`)
		require.Greater(t, next, at-1, "%s is not in its place", k)
		at = next
	}
}

// A ratio is of the comparison with its own congestion control.
func TestRatiosOfTheirPass(t *testing.T) {
	list := complete()
	for i, s := range list[0].Series {
		if s.Work == bulk1 && s.Variant == Shm {
			list[0].Series[i].Values = []float64{1, 2, 4}
		}
	}
	var line strings.Builder
	require.NoError(t, Ratios(list, &line, &strings.Builder{}))
	require.Contains(t, line.String(), `"p1_vs_tcp":2,`)
	require.Contains(t, line.String(), `"cubic_shm_vs_tcp":0.5,`)

	// One that is alone is all there is to tell of.
	line.Reset()
	require.ErrorIs(t, Ratios(list[1:], &line, &strings.Builder{}), ErrMissing)
	require.Contains(t, line.String(), `"p1_vs_tcp":2,`)
	require.Contains(t, line.String(), `"cubic_shm_vs_tcp":null,`)
	line.Reset()
	require.ErrorIs(t, Ratios(list[:1], &line, &strings.Builder{}), ErrMissing)
	require.Contains(t, line.String(), `"p1_vs_tcp":0.5,`)
	require.Contains(t, line.String(), `"cubic_shm_vs_tcp":0.5,`)
}

// A time of auto that is longer than TCP's makes the ratio less than one.
func TestAutoIsAtMostAsGoodAsItsWorstWork(t *testing.T) {
	list := complete()
	for i, s := range list[0].Series {
		if s.Work == ping64+median && s.Variant == Auto {
			list[0].Series[i].Values = []float64{4, 8, 16}
		}
	}
	var line, details strings.Builder
	require.NoError(t, Ratios(list, &line, &details))
	require.Contains(t, line.String(), `"auto_worst_vs_tcp":0.5}`)
	require.Contains(t, details.String(), "auto_worst_vs_tcp: 0.500 (0.50 – 0.50, 3 rounds): ping-pong 64 B, median, tcp to auto, more is better, cubic")
}

// Two gateways are compared with TCP and with each other.
func TestRatiosOfTheOther(t *testing.T) {
	list := complete()
	for _, s := range list[1].Series {
		if s.Variant == Shm {
			other := s
			other.Variant, other.Values = otherPrefix+Shm, []float64{1, 2, 4}
			list[1].Series = append(list[1].Series, other)
		}
	}
	var line, details strings.Builder
	require.NoError(t, Ratios(list, &line, &details))
	require.Contains(t, line.String(), `"p1_vs_tcp":2,`)
	require.Contains(t, details.String(), "p1_vs_tcp: 2.000 (2.00 – 2.00, 2 rounds): bulk, 1 stream, shm to tcp, more is better, bbr\n"+
		"  the other gateway: 0.500 (0.50 – 0.50, 3 rounds); this one to it: 4.000 (4.00 – 4.00)\n")
}

// What a quick comparison does is what its ratios are made of.
func TestQuickDoesWhatIsNeeded(t *testing.T) {
	ways := everyWay(false)
	ways[otherPrefix+Shm] = way{variant: otherPrefix + Shm}
	cells := func(o Options) map[string][]string {
		of := map[string][]string{}
		for _, w := range works() {
			for _, by := range w.among(ways) {
				if w.needs(needed(o.passes), by.variant) {
					of[w.name] = append(of[w.name], by.variant)
				}
			}
		}
		return of
	}
	first, second := cells(Options{passes: usualPass}), cells(Options{passes: pacedPass})
	require.ElementsMatch(t, []string{comparison.TCP, InProcess, Shm, otherPrefix + Shm, Soft1500, Auto, TwoProxies}, first["bulk"])
	require.ElementsMatch(t, []string{comparison.TCP, InProcess}, first["loopback-bulk"])
	require.NotContains(t, second, "loopback-bulk")
	require.ElementsMatch(t, []string{comparison.TCP, InProcess, Auto}, first["redis-c1"])
	require.ElementsMatch(t, []string{comparison.TCP, TwoProxies, Shm, otherPrefix + Shm}, second["ping"])
	require.ElementsMatch(t, []string{comparison.TCP, Plain}, second["offered"])
	require.NotContains(t, first, "offered")
	require.NotContains(t, second, "idle")
	for _, target := range targets {
		for _, q := range target.of {
			of := map[pass]map[string][]string{usualPass: first, pacedPass: second}[q.pass]
			found := false
			for _, w := range works() {
				named := slices.ContainsFunc(w.metrics(), func(m comparison.Metric) bool { return m.Name == q.metric })
				found = found || named && slices.Contains(of[w.name], q.variant) && slices.Contains(of[w.name], q.base)
			}
			require.True(t, found, "%s: %s, %s to %s", target.key, q.metric, q.variant, q.base)
		}
	}
}

// An aim is met or missed by what a reader sees.
func TestAims(t *testing.T) {
	var details strings.Builder
	require.NoError(t, Ratios(complete(), &strings.Builder{}, &details))
	require.Contains(t, details.String(), "p1_vs_tcp: aimed at ≥ 1.10: met\n")
	require.Contains(t, details.String(), "p4_rtt: aimed at ≤ 1.03: missed\n")
	at := target{better: comparison.Less, aim: 1.03}
	require.Equal(t, "met", at.verdict(1.0349))
	require.Equal(t, "missed", at.verdict(1.0351))
}

// A promise about several is kept as well as by the worst.
func TestRatiosTakeTheWorst(t *testing.T) {
	r := complete()
	for i, s := range r[1].Series {
		switch {
		case s.Work == pastBulk && s.Variant == Released:
			r[1].Series[i].Values = []float64{1, 2, 4}
		case s.Work == pastOpen && s.Variant == Attached:
			r[1].Series[i].Values = []float64{14, 28, 56}
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
	for i, s := range r[1].Series {
		if s.Work == redisC1 && s.Variant == Auto {
			r[1].Series[i].Values = []float64{math.NaN(), math.NaN(), math.NaN()}
		}
	}
	var line, details strings.Builder
	err := Ratios(r, &line, &details)
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "p3_auto_vs_tcp")
	require.Contains(t, line.String(), `"p3_auto_vs_tcp":null`)
	require.Contains(t, details.String(), "no ratio of redis -c1, auto to tcp")
	require.ErrorIs(t, Ratios([]*comparison.Report{{}}, &line, &details), ErrMissing)
}
