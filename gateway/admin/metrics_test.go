package admin

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

func TestMetricsFollowTheNamingRules(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(newCollector(&fakeControl{}, "1.2.3")))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// TestMetricNames pins the names dashboards and alerts use.
func TestMetricNames(t *testing.T) {
	rec := httptest.NewRecorder()
	metricsHandler(&fakeControl{}, "1.2.3").ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, rec.Code)
	var ours []string
	for line := range strings.Lines(rec.Body.String()) {
		if strings.HasPrefix(line, "smcgw_") && !strings.HasPrefix(line, "smcgw_build_info") {
			ours = append(ours, line)
		}
	}
	golden(t, "metrics.golden", []byte(strings.Join(ours, "")))
	require.Contains(t, rec.Body.String(), `smcgw_build_info{go="go`)
	require.Contains(t, rec.Body.String(), "go_goroutines")
}

func TestEmptySnapshotIsServed(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(newCollector(emptySource{}, "")))
	_, err := reg.Gather()
	require.NoError(t, err)
}

type emptySource struct{}

func (emptySource) Snapshot() Snapshot { return Snapshot{} }
func (emptySource) Totals() Snapshot   { return Snapshot{} }

// OpenMetrics is served to scrapers that ask for it, the text of Prometheus to the others.
func TestMetricsNegotiateTheirFormat(t *testing.T) {
	for accept, want := range map[string]string{
		"application/openmetrics-text; version=1.0.0": "application/openmetrics-text; version=1.0.0",
		"text/plain": "text/plain; version=0.0.4",
		"":           "text/plain; version=0.0.4",
	} {
		req := httptest.NewRequest("GET", "/metrics", nil)
		req.Header.Set("Accept", accept)
		rec := httptest.NewRecorder()
		metricsHandler(&fakeControl{}, "1.2.3").ServeHTTP(rec, req)
		require.Equal(t, 200, rec.Code)
		require.Contains(t, rec.Header().Get("Content-Type"), want)
		require.Equal(t, strings.HasPrefix(want, "application/openmetrics"), strings.HasSuffix(rec.Body.String(), "# EOF\n"))
	}
}

// TestMetricLabels: a label has few values, which are known beforehand or named by the
// configuration or the host. An address or a port is never one.
func TestMetricLabels(t *testing.T) {
	known := []string{
		"version", "go", "kernel", "mode", "reason", "carrier", "action", "rule", "side", "decided_by", "direction", "kind", "resource",
		"state", "verdict", "map", "device", "event", "result", "cause", "status", "component",
	}
	for _, m := range metricTable(VersionInfo{}) {
		for label := range strings.SplitSeq(describedMetric.FindStringSubmatch(m.desc.String())[3], ",") {
			if label != "" {
				require.Contains(t, known, label, m.desc)
			}
		}
	}
}

func TestHistogram(t *testing.T) {
	h := NewSetupHistogram()
	for _, d := range []time.Duration{-1, 0, 50 * time.Microsecond, 51 * time.Microsecond, time.Second, time.Hour} {
		h.Observe(d)
	}
	s := h.Snapshot()
	require.EqualValues(t, 6, s.Count)
	require.EqualValues(t, 3, s.Buckets[50e-6])
	require.EqualValues(t, 4, s.Buckets[100e-6])
	require.EqualValues(t, 5, s.Buckets[2])
	require.InDelta(t, 3601.0001, s.Sum, 0.001)
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Observe(time.Millisecond) }))
}
