package page

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

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
