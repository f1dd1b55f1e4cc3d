// Command page writes what a comparison has measured: tables, charts and a summary
// into docs/bench, by date, and from the newest summaries the generated part of
// docs/BENCHMARKS.md, between its markers:
//
//	page DOCS [REPORT.json...]
//
// Several reports of the same congestion control are one, in the order they are given.
// Without reports the page is made from the summaries that are there.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/smcgw/smcgw/lab/bench/paper"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: page DOCS [REPORT.json...]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

// The markers, the page that has them, and the directory of results by date.
const (
	page    = "BENCHMARKS.md"
	begin   = "<!-- what follows is written by make bench -->\n"
	end     = "<!-- what make bench writes ends here -->\n"
	records = "bench"
)

func run(docs string, files []string) error {
	reports, err := read(files)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(docs, records), 0o755); err != nil {
		return err
	}
	if len(reports) > 0 {
		if err := results(docs, reports); err != nil {
			return err
		}
	}
	newest, err := summaries(docs)
	if err != nil {
		return err
	}
	name := filepath.Join(docs, page)
	old, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	updated, err := between(string(old), front(newest))
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
