package page

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/smcgw/smcgw/gateway/report"
	pages "github.com/smcgw/smcgw/internal/golden"
)

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
