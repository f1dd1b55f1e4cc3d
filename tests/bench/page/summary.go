package main

import (
	"cmp"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/bench/comparison"
	"github.com/smcgw/smcgw/lab/bench"
	"github.com/smcgw/smcgw/lab/bench/paper"
)

// summary is what a report amounts to.
type summary struct {
	Machine comparison.Machine
	Figures []figure
}

// figure is one work done one way. Ratios are to other ways of the same work, of
// values of the same round.
type figure struct {
	Work    string
	Variant string
	Unit    string
	Value   *spread
	Ratios  map[string]spread
}

// spread is a median with the extremes of that many rounds.
type spread struct {
	Median, Min, Max float64
	Rounds           int
}

// bases are the ways that others are compared with.
var bases = []string{comparison.TCP, bench.TwoProxies, bench.TCP9000}

func summarize(r *paper.Report) *summary {
	s := &summary{Machine: r.Machine}
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

// summaries are those of reports, that of the congestion control of most users first.
func summaries(reports []*paper.Report) (list []*summary) {
	for _, r := range reports {
		list = append(list, summarize(r))
	}
	slices.SortFunc(list, func(a, b *summary) int {
		return cmp.Or(cmp.Compare(rank(a.congestion()), rank(b.congestion())), strings.Compare(a.congestion(), b.congestion()))
	})
	return list
}
