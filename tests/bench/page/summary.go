package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/bench/report"
	"github.com/smcgw/smcgw/lab/bench"
	"github.com/smcgw/smcgw/lab/bench/paper"
)

// summary is what a report amounts to: enough for the page, and a hundredth of its
// size.
type summary struct {
	Machine report.Machine `json:"machine"`
	// Raw is the page with everything, Charts are the groups that have one.
	Raw     string   `json:"raw"`
	Charts  []string `json:"charts"`
	Figures []figure `json:"figures"`
}

// figure is one work done one way. Ratios are to other ways of the same work, of
// values of the same round.
type figure struct {
	Work    string            `json:"work"`
	Variant string            `json:"variant"`
	Unit    string            `json:"unit"`
	Value   *spread           `json:"value,omitempty"`
	Ratios  map[string]spread `json:"ratios,omitempty"`
}

// spread is a median with the extremes of that many rounds.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Rounds int     `json:"rounds"`
}

// bases are the ways that others are compared with.
var bases = []string{report.TCP, bench.TwoProxies, bench.TCP9000}

func summarize(r *paper.Report, raw string, charts []string) *summary {
	s := &summary{Machine: r.Machine, Raw: raw, Charts: charts}
	for _, series := range r.Series {
		f := figure{Work: series.Work, Variant: series.Variant, Unit: series.Unit, Ratios: map[string]spread{}}
		if sp := series.Spread(); sp.N > 0 {
			f.Value = &spread{sp.Median, sp.Min, sp.Max, sp.N}
		}
		for _, base := range bases {
			if sp, ok := r.Ratio(series.Work, series.Variant, base); ok && base != series.Variant {
				f.Ratios[base] = spread{sp.Median, sp.Min, sp.Max, sp.N}
			}
		}
		s.Figures = append(s.Figures, f)
	}
	return s
}

// congestion is what a summary is looked up by.
func (s *summary) congestion() string { return s.Machine.CongestionControl }

func (s *summary) save(docs string) error {
	b, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	name := s.Machine.Time.UTC().Format("2006-01-02") + "-" + s.congestion() + ".json"
	return os.WriteFile(filepath.Join(docs, records, name), append(b, '\n'), 0o644)
}

// figure finds one; nil if it was not measured.
func (s *summary) figure(work, variant string) *figure {
	i := slices.IndexFunc(s.Figures, func(f figure) bool { return f.Work == work && f.Variant == variant })
	if i < 0 {
		return nil
	}
	return &s.Figures[i]
}

// usual is the congestion control that most users have, paced the one that the aims
// of a network with pacing are about.
const (
	usual = bench.Usual
	paced = "bbr"
)

// rank is the place of a congestion control on the page.
func rank(congestion string) int {
	switch congestion {
	case usual:
		return 0
	case paced:
		return 1
	default:
		return 2
	}
}

// summaries reads the newest one of each congestion control, that of most users first.
func summaries(docs string) (list []*summary, err error) {
	files, err := filepath.Glob(filepath.Join(docs, records, "*.json"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files) // by date
	newest := map[string]*summary{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var s summary
		if err := json.Unmarshal(b, &s); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		newest[s.congestion()] = &s
	}
	for _, s := range newest {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *summary) int {
		return cmp.Or(cmp.Compare(rank(a.congestion()), rank(b.congestion())), strings.Compare(a.congestion(), b.congestion()))
	})
	return list, nil
}
