package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/smcgw/smcgw/bench/comparison"
	"github.com/smcgw/smcgw/lab/bench/paper"
)

// groups are the charts, by how their works begin.
var groups = []struct{ file, title, prefix string }{
	{"bulk", "Bulk", "bulk"},
	{"ping", "Ping-pong", "ping-pong"},
	{"redis", "Redis", "redis"},
	{"web", "Web", "nginx"},
	{"connections", "Connections", "connections"},
	{"beside", "Beside one bulk stream", "beside bulk"},
	{"past", "Not carried", "not carried"},
	{"sizes", "Sizes of writes", "writes"},
	{"idle", "Idle connections", "idle"},
	{"loopback", "On one host", "loopback"},
}

// day is the date of a report, by which its files are named.
func day(r *paper.Report) string { return r.Machine.Time.UTC().Format("2006-01-02") }

// results writes everything that the reports say as the page of a day, with a chart
// for each group of works, and which aims are met.
func results(dir string, reports []*paper.Report) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "# Results of %s\n\nWritten by `make bench`. docs/BENCHMARKS.md says what the works and ways are.\n", day(reports[0]))
	for _, r := range reports {
		if err := section(&text, dir, r); err != nil {
			return err
		}
	}
	text.WriteString("\n## Aims\n\n" + aimTable(summaries(reports)))
	return os.WriteFile(filepath.Join(dir, day(reports[0])+".md"), text.Bytes(), 0o644)
}

// section writes a report: a chart and the tables of each group, and the profiles.
func section(w *bytes.Buffer, dir string, r *paper.Report) error {
	fmt.Fprintf(w, "\n## With congestion control %s\n\n", r.Machine.CongestionControl)
	head := *r
	head.Series = nil
	if err := head.Markdown(w); err != nil {
		return err
	}
	for _, g := range groups {
		part := paper.Report{Report: comparison.Report{Machine: r.Machine, Rounds: r.Rounds}}
		for _, s := range r.Series {
			if strings.HasPrefix(s.Work, g.prefix) {
				part.Series = append(part.Series, s)
			}
		}
		if len(part.Series) == 0 {
			continue
		}
		var svg bytes.Buffer
		if err := part.SVG(&svg); err != nil {
			return err
		}
		chart := chartName(day(r), r.Machine.CongestionControl, g.file)
		if err := os.WriteFile(filepath.Join(dir, chart), svg.Bytes(), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(w, "\n### %s, %s\n\n![%s](%s)\n", g.title, r.Machine.CongestionControl, g.title, chart)
		tables := paper.Report{Report: comparison.Report{Series: part.Series}}
		if err := tables.Markdown(w); err != nil {
			return err
		}
	}
	return profiles(w, r)
}

// chartName is the file of a chart.
func chartName(day, congestion, group string) string {
	return day + "-" + congestion + "-" + group + ".svg"
}
