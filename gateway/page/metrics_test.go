package page

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	pages "github.com/smcgw/smcgw/internal/golden"
)

func TestMetricsFollowTheNamingRules(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(newCollector(sampleSource{}, report.VersionInfo{Version: "1.2.3"})))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// TestMetricNames pins the names dashboards and alerts use.
func TestMetricNames(t *testing.T) {
	rec := httptest.NewRecorder()
	c := newCollector(sampleSource{}, report.VersionInfo{Version: "1.2.3"})
	c.now = func() time.Time { return sampleSource{}.Snapshot().Heartbeat.Add(50 * time.Millisecond) }
	metricsHandler(c).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, rec.Code)
	var ours []string
	for line := range strings.Lines(rec.Body.String()) {
		if strings.HasPrefix(line, "smcgw_") && !strings.HasPrefix(line, "smcgw_build_info") {
			ours = append(ours, line)
		}
	}
	pages.File(t, "metrics.golden", strings.Join(ours, ""))
	require.Contains(t, rec.Body.String(), `smcgw_build_info{go="go`)
	require.Contains(t, rec.Body.String(), "go_goroutines")
}

// slowSource is a gateway that a look at takes a second.
type slowSource struct {
	sampleSource

	now *time.Time
}

func (s slowSource) Snapshot() report.Snapshot {
	*s.now = s.now.Add(time.Second)
	return s.sampleSource.Snapshot()
}

// TestHeartbeatAge: however long a look takes, the heartbeat is as old as it was when that began.
func TestHeartbeatAge(t *testing.T) {
	now := sampleSource{}.Snapshot().Heartbeat.Add(50 * time.Millisecond)
	c := newCollector(slowSource{now: &now}, report.VersionInfo{})
	c.now = func() time.Time { return now }
	rec := httptest.NewRecorder()
	metricsHandler(c).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	require.Contains(t, rec.Body.String(), "\nsmcgw_datapath_heartbeat_age_seconds 0.05\n")
}

func TestEmptySnapshotIsServed(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(newCollector(emptySource{}, report.VersionInfo{})))
	_, err := reg.Gather()
	require.NoError(t, err)
}

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
		Metrics(sampleSource{}, report.VersionInfo{Version: "1.2.3"}).ServeHTTP(rec, req)
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
	for _, n := range report.Numbers(report.VersionInfo{}) {
		for _, label := range n.Labels {
			require.Contains(t, known, label, n.Name)
		}
	}
}
