package monitoring

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/smcgw/smcgw/lab/testnet"
)

const (
	rulesFile     = "../../packaging/prometheus/smcgw.rules.yaml"
	dashboardFile = "../../packaging/grafana/smcgw.json"
)

// TestRulesFire checks that the rules are valid, that each fires for what it is about with the right words, and that
// none fires on a healthy host.
func TestRulesFire(t *testing.T) {
	testnet.Require(t, "promtool")
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", "testdata/rules_test.yaml"}} {
		out, err := exec.Command("promtool", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	rules, err := os.ReadFile(rulesFile)
	require.NoError(t, err)
	tests, err := os.ReadFile("testdata/rules_test.yaml")
	require.NoError(t, err)
	var doc struct {
		Groups []struct {
			Rules []struct{ Alert string }
		}
	}
	require.NoError(t, yaml.Unmarshal(rules, &doc))
	for _, g := range doc.Groups {
		for _, r := range g.Rules {
			require.Contains(t, string(tests), "- name: "+r.Alert+"\n")
			require.Contains(t, string(tests), "alertname: "+r.Alert+", exp_alerts: [] }")
		}
	}
}

// prometheus is a running Prometheus.
type prometheus struct {
	t    *testing.T
	addr string
	c    *http.Client
}

// startPrometheus starts a Prometheus on the first host that scrapes the gateways every second and has the alert rules.
func startPrometheus(t *testing.T, w *world) *prometheus {
	t.Helper()
	dir, addr := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", prometheusPort)
	rules, err := filepath.Abs(rulesFile)
	require.NoError(t, err)
	config := fmt.Sprintf(`global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [%q]
scrape_configs:
  - job_name: smcgw
    static_configs: [{ targets: [%s] }]
`, rules, strings.Join(w.metrics, ", "))
	require.NoError(t, os.WriteFile(dir+"/prometheus.yml", []byte(config), 0o600))
	var said bytes.Buffer
	cmd := w.h1.Command(context.Background(), "prometheus", "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+addr, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		late.Stop()
		if t.Failed() {
			t.Logf("prometheus: %s", said.String())
		}
	})
	p := &prometheus{t, addr, client(w.h1, false)}
	require.Eventually(t, func() bool { return len(p.query("smcgw_build_info")) == len(w.metrics) }, patience, 200*time.Millisecond)
	return p
}

// series is a series of an answer.
type series struct {
	Metric map[string]string
	Value  [2]any
}

// query evaluates an expression now.
func (p *prometheus) query(expr string) []series {
	var doc struct {
		Data struct{ Result []series }
	}
	p.get("/api/v1/query?query="+url.QueryEscape(expr), &doc)
	return doc.Data.Result
}

// get queries the API. No answer leaves doc as it is; an expression that it refuses fails the test.
func (p *prometheus) get(path string, doc any) {
	resp, err := p.c.Get("http://" + p.addr + path)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusBadRequest {
		require.FailNow(p.t, "bad query", path)
	}
	_ = json.NewDecoder(resp.Body).Decode(doc)
}

// dashboard is what the test reads of the file.
type dashboard struct {
	Panels []struct {
		ID                 int
		Title, Description string
		Type               string
		GridPos            struct{ X, Y, W, H int }
		Targets            []struct{ Expr, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name string }
	}
}

// asGrafana replaces the variables of the dashboard as Grafana would.
func asGrafana(expr string) string {
	return strings.NewReplacer("$instance", ".*", "$__rate_interval", "10s", "$__range", "1m").Replace(expr)
}

// TestDashboard checks that a Prometheus that scrapes two gateways under load has an answer to every query of every
// panel, in series with the labels of its legend, except where the panel says that it is empty when all is well. No
// alert that fires at once may fire.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	testnet.Require(t, "prometheus")
	w := newWorld(t)
	p := startPrometheus(t, w)
	label := regexp.MustCompile(`\{\{(\w+)\}\}`)
	queries, ids := 0, map[int]bool{}
	for _, panel := range d.Panels {
		require.False(t, ids[panel.ID], panel.Title)
		ids[panel.ID] = true
		require.LessOrEqual(t, panel.GridPos.X+panel.GridPos.W, 24, panel.Title)
		if panel.Type == "row" {
			continue
		}
		require.NotEmpty(t, panel.Description, panel.Title)
		require.NotEmpty(t, panel.Targets, panel.Title)
		quiet := strings.Contains(panel.Description, "Empty w")
		for _, target := range panel.Targets {
			queries++
			var got []series
			has := func() bool { got = p.query(asGrafana(target.Expr)); return len(got) > 0 }
			if quiet {
				has()
				require.False(t, len(got) > 0 && strings.Contains(panel.Description, "Empty while all is well"), "%s: %v", panel.Title, got)
			} else {
				require.Eventually(t, has, patience, 500*time.Millisecond, "%s: %s", panel.Title, target.Expr)
			}
			for _, s := range got {
				require.NotEqual(t, "NaN", s.Value[1], target.Expr)
				for _, m := range label.FindAllStringSubmatch(target.LegendFormat, -1) {
					if m[1] != "decided_by" { // an orderly end has none
						require.Contains(t, slices.Collect(maps.Keys(s.Metric)), m[1], "%s: legend of %s", panel.Title, target.Expr)
					}
				}
			}
		}
	}
	require.Greater(t, queries, 30)

	// The rules are evaluated on what a gateway serves, not on made-up values.
	var doc struct {
		Data struct {
			Groups []struct {
				Rules []struct {
					Name, Health, LastError, State string
				}
			}
		}
	}
	p.get("/api/v1/rules", &doc)
	require.NotEmpty(t, doc.Data.Groups)
	for _, r := range doc.Data.Groups[0].Rules {
		require.Equal(t, "ok", r.Health, "%s: %s", r.Name, r.LastError)
		require.NotEqual(t, "firing", r.State, r.Name)
	}
}

// TestDashboardNamesMetrics checks that the reference has every metric that the dashboard queries.
func TestDashboardNamesMetrics(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	require.NoError(t, err)
	reference, err := os.ReadFile("../../docs/reference/metrics.md")
	require.NoError(t, err)
	names := regexp.MustCompile(`smcgw_\w+`).FindAllString(string(text), -1)
	require.NotEmpty(t, names)
	for _, name := range names {
		require.Contains(t, string(reference), "`"+strings.TrimSuffix(name, "_bucket")+"`", name)
	}
}
