package metrics

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/smcgw/smcgw/gateway/admin"
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
	described := map[string]string{}
	name := regexp.MustCompile(`fqName: "(\w+)"`)
	for _, m := range metricTable(admin.VersionInfo{}) {
		described[name.FindStringSubmatch(m.desc.String())[1]] = m.desc.String()
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
					require.Regexp(t, `\b`+m[1]+`\b`, described[use[1]], r.Alert)
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
		require.True(t, ok || slices.Contains([]string{string(admin.EndClosed), admin.DemotedByOperator, admin.DemotedByPeer}, name), name)
	}
}
