// Command page writes what a comparison has measured into docs/BENCHMARKS.md,
// between its markers, and charts beside it:
//
//	page DOCS REPORT.json...
//
// Several reports of the same machine and congestion control are one, in the
// order they are given; each congestion control has a section of its own.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/smcgw/smcgw/bench/report"
	"github.com/smcgw/smcgw/lab/bench/paper"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: page DOCS REPORT.json...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

// The markers, and the page that has them.
const (
	page   = "BENCHMARKS.md"
	begin  = "<!-- what follows is written by make bench -->\n"
	end    = "<!-- what make bench writes ends here -->\n"
	charts = "bench"
)

func run(docs string, files []string) error {
	reports, err := read(files)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(docs, charts), 0o755); err != nil {
		return err
	}
	var text bytes.Buffer
	for i, r := range reports {
		if err := section(&text, docs, r, i > 0); err != nil {
			return err
		}
	}
	name := filepath.Join(docs, page)
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	updated, err := between(string(old), text.String())
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, []byte(updated), 0o644)
}

// read joins the reports that have the same congestion control.
func read(files []string) (list []*paper.Report, err error) {
	at := map[string]*paper.Report{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var r paper.Report
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		first, ok := at[r.Machine.CongestionControl]
		if !ok {
			at[r.Machine.CongestionControl] = &r
			list = append(list, &r)
			continue
		}
		first.Series = append(first.Series, r.Series...)
		first.Commands = append(first.Commands, r.Commands...)
		first.Notes = append(first.Notes, r.Notes...)
		first.Profiles = append(first.Profiles, r.Profiles...)
		first.Rounds = min(first.Rounds, r.Rounds)
	}
	return list, nil
}

var errMarkers = errors.New("no markers of generated text")

// between replaces what is between the markers.
func between(old, text string) (string, error) {
	head, rest, ok := strings.Cut(old, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", errMarkers
	}
	return head + begin + text + end + tail, nil
}

// groups are the charts, by how their works begin.
var groups = []struct{ file, title, prefix string }{
	{"bulk", "Bulk", "bulk"},
	{"ping", "Ping-pong", "ping-pong"},
	{"redis", "Redis", "redis"},
	{"web", "Web", "nginx"},
	{"connections", "Connections", "connections"},
	{"past", "Not carried", "not carried"},
	{"sizes", "Sizes of writes", "writes"},
	{"idle", "Idle connections", "idle"},
}

// section writes a report: a chart and the tables of each group.
func section(w *bytes.Buffer, docs string, r *paper.Report, more bool) error {
	suffix := ""
	if more {
		suffix = "-" + r.Machine.CongestionControl
	}
	fmt.Fprintf(w, "\n### With congestion control %s\n\n", r.Machine.CongestionControl)
	head := *r
	head.Series = nil
	if err := head.Markdown(w); err != nil {
		return err
	}
	for _, g := range groups {
		part := paper.Report{Report: report.Report{Machine: r.Machine, Rounds: r.Rounds}}
		for _, s := range r.Series {
			if strings.HasPrefix(s.Work, g.prefix) {
				part.Series = append(part.Series, s)
			}
		}
		if len(part.Series) == 0 {
			continue
		}
		chart := filepath.Join(charts, g.file+suffix+".svg")
		var svg bytes.Buffer
		if err := part.SVG(&svg); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(docs, chart), svg.Bytes(), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(w, "\n#### %s%s\n\n![%s](%s)\n", g.title, strings.Replace(suffix, "-", ", ", 1), g.title, chart)
		tables := paper.Report{Report: report.Report{Series: part.Series}}
		if err := tables.Markdown(w); err != nil {
			return err
		}
	}
	return profiles(w, r)
}
