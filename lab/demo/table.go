package demo

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// line is one line of the table: a measurement, an observation, or both.
type line struct {
	name            string
	unit            string
	higher          bool
	direct, carried []float64
	what            string // what is expected
	ok              bool
	note            string
}

// table collects the lines.
type table struct {
	out   io.Writer
	lines []line
}

func (r *table) add(l line) { r.lines = append(r.lines, l) }

// print writes the table; ErrExpectation if a line is not as expected.
func (r *table) print() error {
	fmt.Fprintln(r.out)
	w := tabwriter.NewWriter(r.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tDIRECT TCP\tSMCGW\tRATIO\tEXPECTED\tRESULT")
	failed := false
	for i := range r.lines {
		l := &r.lines[i]
		failed = failed || !l.ok
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", l.name, l.value(l.direct), l.value(l.carried), l.ratio(), l.what, l.result())
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	fmt.Fprintln(r.out, "\nMedians of alternating rounds; a ratio in brackets is the range over the rounds. Two busy ends on one machine:\ncompare within a line only.")
	if failed {
		return ErrExpectation
	}
	return nil
}

func (l *line) value(v []float64) string {
	if len(v) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %s", median(v), l.unit)
}

// ratio is smcgw's part by direct TCP's, of throughput; of times, too.
func (l *line) ratio() string {
	if len(l.direct) == 0 || len(l.direct) != len(l.carried) {
		return "-"
	}
	var rs []float64
	for i := range l.direct {
		rs = append(rs, l.carried[i]/l.direct[i])
	}
	better := "more is better"
	if !l.higher {
		better = "less is better"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f), %s", median(rs), slices.Min(rs), slices.Max(rs), better)
}

func (l *line) result() string {
	word := "ok"
	if !l.ok {
		word = "FAILED"
	}
	if l.note != "" {
		word += ": " + l.note
	}
	return word
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}
