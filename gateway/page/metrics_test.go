package page

import (
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/smcgw/smcgw/gateway/report"
	pages "github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/negotiate"
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

// TestReference: docs/reference/metrics.md has every metric of the collector.
func TestReference(t *testing.T) {
	var rows []string
	for _, n := range report.Numbers(report.VersionInfo{}) {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", report.Namespace+n.Name, strings.Join(n.Labels, ", "), n.Help))
	}
	slices.Sort(rows)
	text := "# Metrics\n\n" +
		"Generated from `gateway/report` by `make docs`. They are at `/metrics` on the admin socket, and over TCP at\n" +
		"`metrics.listen` if set. No label holds an address or a port. docs/operations/monitoring.md says which ones to watch.\n\n" +
		"| metric | labels | meaning |\n|---|---|---|\n" + strings.Join(rows, "")
	pages.Page(t, "docs/reference/metrics.md", text)
}

// emptySource is a gateway that has no number yet.
type emptySource struct{}

func (emptySource) Snapshot() report.Snapshot { return report.Snapshot{} }
func (emptySource) Totals() report.Snapshot   { return report.Snapshot{} }

// sampleSource is a gateway with fixed numbers.
type sampleSource struct{}

func (s sampleSource) Totals() report.Snapshot { return s.Snapshot() }

func (sampleSource) Snapshot() report.Snapshot {
	h := report.NewSetupHistogram()
	h.Observe(time.Millisecond)
	h.Observe(3 * time.Second)
	return report.Snapshot{
		Mode:        report.ModeObserve,
		Flows:       map[report.Carrier]int{report.CarrierShm: 3},
		FlowsTotal:  map[report.Carrier]uint64{report.CarrierShm: 40},
		Fallbacks:   []report.FallbackCount{{Reason: "peer_no_option", Side: report.SideClient, Count: 7}},
		Decisions:   []report.DecisionCount{{Action: report.ActionAccelerate, Rule: "redis", Count: 9}},
		BytesTotal:  map[report.Carrier]report.ByteCount{report.CarrierShm: {Tx: 100, Rx: 200}},
		Handshakes:  map[report.Carrier]report.HistogramSnapshot{report.CarrierShm: h.Snapshot()},
		Memory:      map[string]uint64{"rmb": 1 << 20},
		Durations:   map[report.Carrier]report.HistogramSnapshot{report.CarrierShm: report.NewLifeHistogram().Snapshot()},
		RoundTrips:  report.NewSetupHistogram().Snapshot(),
		Rings:       map[report.Carrier]report.RingUse{report.CarrierShm: {Size: 4096, Waiting: 10, Unacknowledged: 20}},
		CQErrors:    []report.CQErrorCount{{Carrier: report.CarrierSoft, Status: "retry_exc_err", Count: 2}},
		Degraded:    []string{"device_failed"},
		CPU:         map[string]time.Duration{"shard0": 1500 * time.Millisecond, "rest": time.Second},
		MemoryLimit: 1 << 30,
		Peers:       map[report.PeerState]int{report.PeerCapable: 1},
		Maps:        []report.MapUse{{Map: "flows", Entries: 5, Capacity: 65536}, {Map: "peers", Entries: 16384}},
		Devices: []report.DeviceInfo{
			{Name: "soft0", Carrier: report.CarrierSoft, State: report.DeviceActive, Counters: map[string]uint64{"retransmits": 7}},
			{Name: "soft1", Carrier: report.CarrierSoft, State: report.DeviceActive},
			{Name: "hw0", Carrier: report.CarrierHW, State: report.DeviceAbsent},
		},
		Heartbeat: time.Unix(1_700_000_000, 250_000_000),
		UDP: report.ProtoStats{
			Flows:  map[report.Carrier]report.FlowCount{report.CarrierSoft: {Now: 1, Total: 4}},
			Bytes:  map[report.Carrier]report.ByteCount{report.CarrierSoft: {Tx: 1000, Rx: 2000}},
			Native: map[string]uint64{"nat": 2},
		},
		Datagrams: report.DatagramStats{
			Sent: map[report.Carrier]uint64{report.CarrierSoft: 10}, Received: map[report.Carrier]uint64{report.CarrierSoft: 20},
			Delivered: 19, Returned: 3, Dropped: map[report.DatagramDrop]uint64{report.DropReassembly: 1},
			Resolution: report.ResolutionStats{Queries: 4, Answers: 3, Refusals: 1, Asked: 5, Answered: 4, Refused: 1, Ignored: 6},
		},
		Bounds: report.Bounds{
			Flows: 900, WireLegs: map[string]int{"open": 3, "dead": 2}, LogDropped: 4, AccessLeftOut: 9,
			Wire: map[string]uint64{"shed": 5}, Datapath: map[string]uint64{"wire_queue_drop": 6},
		},
	}
}

// The alert rules ask for metrics, labels and reasons that there are.
func TestAlertRules(t *testing.T) {
	text, err := os.ReadFile("../../packaging/prometheus/smcgw.rules.yaml")
	require.NoError(t, err)
	var doc struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &doc))
	described := map[string]report.Labels{}
	for _, n := range report.Numbers(report.VersionInfo{}) {
		described[report.Namespace+n.Name] = n.Labels
	}
	used := regexp.MustCompile(`(smcgw_\w+)(?:\{([^}]*)\})?`)
	matcher := regexp.MustCompile(`(\w+)[=!]~?"([^"]*)"`)
	rules := 0
	for _, g := range doc.Groups {
		for _, r := range g.Rules {
			rules++
			require.NotEmpty(t, r.Annotations["summary"], r.Alert)
			require.NotEmpty(t, r.Annotations["description"], r.Alert)
			for _, use := range used.FindAllStringSubmatch(r.Expr, -1) {
				use[1] = strings.TrimSuffix(use[1], "_bucket") // of a histogram
				require.Contains(t, described, use[1], r.Alert)
				for _, m := range matcher.FindAllStringSubmatch(use[2], -1) {
					require.Contains(t, described[use[1]], m[1], r.Alert)
					if m[1] == "reason" {
						requireReasons(t, m[2])
					}
				}
			}
		}
	}
	require.GreaterOrEqual(t, rules, 3)
}

func requireReasons(t *testing.T, pattern string) {
	for _, name := range regexp.MustCompile(`[a-z_]+`).FindAllString(pattern, -1) {
		_, ok := negotiate.ParseReason(name)
		require.True(t, ok || slices.Contains([]string{string(report.EndClosed), report.DemotedByOperator, report.DemotedByPeer}, name), name)
	}
}

// atStart is a gateway that has just begun to serve.
type atStart struct{ emptySource }

func (atStart) Snapshot() report.Snapshot {
	return report.Snapshot{
		CPU:       map[string]time.Duration{"shard0": 0, "rest": 0},
		Decisions: []report.DecisionCount{{Action: report.ActionAccelerate, Rule: "web"}},
	}
}

// TestAlertsSeeTheFirst: what an alert takes the increase of is 0 from the start on. An
// increase from a series that did not exist before does not show.
func TestAlertsSeeTheFirst(t *testing.T) {
	text, err := os.ReadFile("../../packaging/prometheus/smcgw.rules.yaml")
	require.NoError(t, err)
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(newCollector(atStart{}, report.VersionInfo{})))
	families, err := reg.Gather()
	require.NoError(t, err)
	there := map[string]bool{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			of := []string{f.GetName()}
			for _, l := range m.GetLabel() { // by name
				of = append(of, l.GetValue())
			}
			there[strings.Join(of, " ")] = m.GetCounter().GetValue() == 0 && m.GetHistogram().GetSampleCount() == 0
		}
	}
	var carriers, devices, reasons, sides []string
	for _, c := range report.Carriers() {
		carriers = append(carriers, string(c))
	}
	devices = slices.DeleteFunc(slices.Clone(carriers), func(c string) bool { return c == string(report.CarrierRelay) })
	for _, r := range negotiate.Reasons() {
		reasons = append(reasons, r.String())
	}
	sides = []string{"client", "server"}
	resets := []string{}
	for _, r := range report.ResetReasons() {
		resets = append(resets, r.String())
	}
	labels := map[string][][2]any{ // of each, by name of the label, what it can be
		"smcgw_config_reloads_total":       {{"result", []string{"done", "refused"}}},
		"smcgw_connections_ended_total":    {{"decided_by", []string{"local", "remote"}}, {"reason", resets}, {"side", sides}},
		"smcgw_stalls_total":               {{"carrier", carriers}},
		"smcgw_panics_total":               {},
		"smcgw_decisions_total":            {{"action", []string{"accelerate"}}, {"rule", []string{"web"}}},
		"smcgw_flows_total":                {{"carrier", carriers}},
		"smcgw_dgram_flows_total":          {{"carrier", slices.DeleteFunc(slices.Clone(devices), func(c string) bool { return c == string(report.CarrierIB) })}},
		"smcgw_fallbacks_total":            {{"reason", reasons}, {"side", sides}},
		"smcgw_demotions_total":            {{"carrier", devices}, {"reason", report.DemotionCauses()}},
		"smcgw_handshake_duration_seconds": {{"carrier", carriers}},
		"smcgw_cpu_seconds_total":          {{"component", []string{"shard0", "rest"}}},
		"smcgw_log_dropped_total":          {},
	}
	seen := map[string]bool{}
	for _, use := range regexp.MustCompile(`(?:increase|rate)\((smcgw_\w+)(?:\{([^}]*)\})?\[`).FindAllStringSubmatch(string(text), -1) {
		name := strings.TrimSuffix(use[1], "_bucket")
		require.Contains(t, labels, name)
		seen[name] = true
		series := []string{name}
		for _, l := range labels[name] {
			var longer []string
			for _, v := range l[1].([]string) {
				if selected(t, use[2], l[0].(string), v) {
					for _, s := range series {
						longer = append(longer, s+" "+v)
					}
				}
			}
			require.NotEmpty(t, longer, use[0])
			series = longer
		}
		for _, s := range series {
			require.True(t, there[s], s)
		}
	}
	require.Len(t, seen, len(labels), "each is used")
}

// selected reports whether the matchers of a selector take a value of a label.
func selected(t *testing.T, matchers, label, value string) bool {
	m := regexp.MustCompile(`(?:^|,)\s*` + label + `(=~|!~|!=|=)"([^"]*)"`).FindStringSubmatch(matchers)
	if m == nil {
		return true
	}
	pattern := m[2]
	if !strings.HasSuffix(m[1], "~") {
		pattern = regexp.QuoteMeta(pattern)
	}
	is, err := regexp.MatchString("^(?:"+pattern+")$", value)
	require.NoError(t, err)
	return is != strings.HasPrefix(m[1], "!")
}
