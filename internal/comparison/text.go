package comparison

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Text writes the report for a terminal: a line for each variant that could not be measured, a table per work, each
// followed by the line that says where plain TCP wins, and a table of all medians.
func (r *Report) Text(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, line := range r.Machine.Lines() {
		fmt.Fprintln(b, line)
	}
	absent := r.Absent()
	for i, s := range absent {
		if i == 0 {
			fmt.Fprintln(b)
		}
		fmt.Fprintf(b, "%s was not measured: %s\n", plain(s.Variant), plain(s.Note))
	}
	for _, work := range r.Works() {
		if err := r.textWork(b, work, absent); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	if err := r.textSummary(b, absent); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if len(r.Series) == 0 {
		fmt.Fprintln(b, "nothing was measured")
	}
	for i, note := range r.Notes {
		if i == 0 {
			fmt.Fprintln(b)
		}
		fmt.Fprintln(b, plain(note))
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// without removes the series of variants that are in absent.
func without(list, absent []Series) []Series {
	return slices.DeleteFunc(list, func(s Series) bool {
		return slices.ContainsFunc(absent, func(a Series) bool { return a.Variant == s.Variant })
	})
}

// nothing reports whether a work has nothing to show but that plain TCP has no value.
func nothing(list, absent []Series) bool {
	return !slices.ContainsFunc(without(list, absent), func(s Series) bool { return s.Variant != TCP || len(s.Values) > 0 })
}

// textSummary writes the median of plain TCP for each work, and how the other variants compare.
func (r *Report) textSummary(w io.Writer, absent []Series) error {
	works := slices.DeleteFunc(r.Works(), func(work string) bool { return nothing(r.Of(work), absent) })
	if len(works) < 2 {
		return nil
	}
	header := []string{"WORK", "BETTER", TCP}
	for _, s := range without(slices.Clone(r.Series), absent) {
		if name := plain(s.Variant); !slices.Contains(header, name) {
			header = append(header, name)
		}
	}
	fmt.Fprint(w, "\nSummary: the median of plain TCP, and the others' as a multiple of it\n")
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "  "+strings.Join(header, "\t"))
	for _, work := range works {
		list, row := r.Of(work), slices.Repeat([]string{"-"}, len(header))
		row[0], row[1] = plain(work), list[0].Better.String()
		for _, s := range list {
			at := slices.Index(header, plain(s.Variant))
			switch ratio, ok := r.Ratio(work, s.Variant, TCP); {
			case s.Variant == TCP && s.Spread().N > 0:
				row[at] = strings.TrimSpace(Number(s.Spread().Median) + " " + plain(s.Unit))
			case s.Variant != TCP && at >= 0 && ok:
				row[at] = factor(ratio.Median) + "×"
			}
		}
		fmt.Fprintln(tw, "  "+strings.Join(row, "\t"))
	}
	return tw.Flush()
}

func (r *Report) textWork(w io.Writer, work string, absent []Series) error {
	if nothing(r.Of(work), absent) {
		return nil
	}
	list := without(r.Of(work), absent)
	fmt.Fprintf(w, "\n%s (%s)\n", plain(work), strings.TrimPrefix(plain(list[0].Unit)+", "+direction(list[0].Better), ", "))
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "  VARIANT\tMEDIAN\tMIN\tMAX\tROUNDS\tVS TCP\tNOTE")
	for _, s := range list {
		sp := s.Spread()
		cells := []string{plain(s.Variant), Number(sp.Median), Number(sp.Min), Number(sp.Max), rounds(s, sp), r.versus(s), plain(s.Note)}
		for i, c := range cells {
			if c == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(tw, "  "+strings.Join(cells, "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "  "+r.Verdict(work))
	return err
}

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
