// Command page writes what a comparison has measured: every table, chart and profile into a
// directory of results, and the generated part of docs/BENCHMARKS.md, between its markers:
//
//	page BENCHMARKS.md RESULTS REPORT.json...
//
// Several reports of the same congestion control are one, in the order they are given.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/smcgw/smcgw/lab/bench/paper"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: page BENCHMARKS.md RESULTS REPORT.json...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

// The markers of the page.
const (
	begin = "<!-- what follows is written by make bench -->\n"
	end   = "<!-- what make bench writes ends here -->\n"
)

func run(page, dir string, files []string) error {
	reports, err := read(files)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := results(dir, reports); err != nil {
		return err
	}
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	updated, err := between(string(old), front(summaries(reports)))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(updated), 0o644)
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
