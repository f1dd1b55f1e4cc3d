package comparison

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// plain makes a name fit for one line of a terminal: whatever it contains, it moves no cursor and ends no line.
func plain(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		default:
			return r
		}
	}, s))
}

// Number formats a value with about three significant digits.
func Number(v float64) string {
	a := math.Abs(v)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "-"
	case a >= 1e15:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
}

// times formats a ratio with its spread.
func times(s Spread) string {
	if s.N == 1 {
		return factor(s.Median) + "×"
	}
	return fmt.Sprintf("%s× (%s–%s)", factor(s.Median), factor(s.Min), factor(s.Max))
}

// factor formats a ratio with two decimals, unless that would leave nothing of it.
func factor(v float64) string {
	if a := math.Abs(v); a < 0.1 || a >= 100 {
		return Number(v)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// direction says how to read a series.
func direction(b Better) string { return b.String() + " is better" }

// rounds says how many rounds a series has, and how many of them failed.
func rounds(s Series, sp Spread) string {
	if sp.N == len(s.Values) {
		return strconv.Itoa(sp.N)
	}
	return fmt.Sprintf("%d of %d", sp.N, len(s.Values))
}

// versus returns the cell that compares a series with plain TCP. It is empty for plain TCP itself, and if there is
// nothing to compare.
func (r *Report) versus(s Series) string {
	ratio, ok := r.Ratio(s.Work, s.Variant, TCP)
	if s.Variant == TCP || !ok {
		return ""
	}
	return times(ratio)
}

// Verdict says in one line where plain TCP wins a work and by how much, and where the rounds are inconclusive.
func (r *Report) Verdict(work string) string {
	if base, ok := r.find(work, TCP); !ok || base.Spread().N == 0 {
		return "plain TCP was not measured: nothing to compare with"
	}
	var wins, ties []string
	others := 0
	for _, s := range r.Of(work) {
		ratio, ok := r.Ratio(work, s.Variant, TCP)
		if s.Variant == TCP || !ok {
			continue
		}
		others++
		lead, worst, best := ratio.Median, ratio.Min, ratio.Max // of plain TCP
		if s.Better == More {
			lead, worst, best = 1/ratio.Median, 1/ratio.Max, 1/ratio.Min
		}
		switch {
		case lead <= 1:
		case worst < 1 && best > 1:
			ties = append(ties, plain(s.Variant))
		default:
			wins = append(wins, fmt.Sprintf("%s by %s×", plain(s.Variant), factor(lead)))
		}
	}
	switch {
	case others == 0:
		return "nothing but plain TCP was measured"
	case len(wins)+len(ties) == 0:
		return "plain TCP wins against none"
	}
	var parts []string
	if len(wins) > 0 {
		parts = append(parts, "plain TCP wins against "+strings.Join(wins, ", "))
	}
	if len(ties) > 0 {
		parts = append(parts, "plain TCP is ahead within the spread of "+strings.Join(ties, ", "))
	}
	return strings.Join(parts, "; ")
}

// Lines describes the machine, without what is unknown.
func (m Machine) Lines() (list []string) {
	cpu := plain(m.CPU)
	if m.CPUs > 0 {
		cpu = strings.TrimSpace(fmt.Sprintf("%d × %s", m.CPUs, cpu))
	}
	var first []string
	for _, s := range []string{cpu, plain(m.Arch), with("kernel ", m.Kernel), plain(m.GoVersion), with("congestion control ", m.CongestionControl)} {
		if s != "" {
			first = append(first, s)
		}
	}
	if len(first) > 0 {
		list = append(list, strings.Join(first, ", "))
	}
	if !m.Time.IsZero() {
		list = append(list, m.Time.UTC().Format("2006-01-02 15:04:05")+" UTC, load before the start "+Number(m.Load1))
	}
	return list
}

// with prepends a word to a text, unless the text is empty.
func with(word, s string) string {
	if s = plain(s); s == "" {
		return ""
	}
	return word + s
}
