package metrics

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	pages "github.com/smcgw/smcgw/internal/golden"
)

// describedMetric takes name, help and labels from the text of a description.
var describedMetric = regexp.MustCompile(`fqName: "(smcgw_[a-z_]+)", help: "(.*?)", (?:unit: "", )?constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

// TestReference: docs/reference/metrics.md has every metric of the collector.
func TestReference(t *testing.T) {
	descs := make(chan *prometheus.Desc, 100)
	newCollector(emptySource{}, report.VersionInfo{}).Describe(descs)
	close(descs)
	require.NotEmpty(t, descs)
	var rows []string
	for d := range descs {
		m := describedMetric.FindStringSubmatch(d.String())
		require.NotNil(t, m, d.String())
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", m[1], strings.ReplaceAll(m[3], ",", ", "), m[2]))
	}
	slices.Sort(rows)
	text := "# Metrics\n\n" +
		"Generated from `gateway/metrics` by `make docs`. They are at `/metrics` on the admin socket, and over TCP at\n" +
		"`metrics.listen` if set. No label holds an address or a port. docs/operations/monitoring.md says which ones to watch.\n\n" +
		"| metric | labels | meaning |\n|---|---|---|\n" + strings.Join(rows, "")
	pages.Page(t, "docs/reference/metrics.md", text, *update)
}
