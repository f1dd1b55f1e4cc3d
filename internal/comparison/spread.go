package comparison

import (
	"math"
	"slices"
)

// Spread summarises a number of rounds.
type Spread struct {
	// Median is the middle value, or the mean of the two middle ones if N is even. Min and Max are the
	// extremes. All are NaN if N is 0.
	Median, Min, Max float64
	// N is the number of rounds that counted.
	N int
}

// Spread summarises the rounds that did not fail.
func (s Series) Spread() Spread { return spreadOf(s.Values) }

// Ratio compares two ways of doing the same work round by round: each value is divided by the base's value of the same
// round, whichever direction is better. Rounds that failed on either side, or whose base is zero, do not count. It
// returns false if no round counts.
func (r *Report) Ratio(work, variant, base string) (Spread, bool) {
	v, ok := r.find(work, variant)
	if !ok {
		return spreadOf(nil), false
	}
	b, ok := r.find(work, base)
	if !ok {
		return spreadOf(nil), false
	}
	var ratios []float64
	for i := range min(len(v.Values), len(b.Values)) {
		if b.Values[i] != 0 {
			ratios = append(ratios, v.Values[i]/b.Values[i])
		}
	}
	s := spreadOf(ratios)
	return s, s.N > 0
}

// spreadOf ignores values that are not finite.
func spreadOf(values []float64) Spread {
	sorted := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	n := len(sorted)
	if n == 0 {
		return Spread{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	slices.Sort(sorted)
	median := sorted[n/2]
	if n%2 == 0 {
		median = sorted[n/2-1]/2 + median/2
	}
	return Spread{Median: median, Min: sorted[0], Max: sorted[n-1], N: n}
}
