package demo

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/smcgw/smcgw/internal/comparison"
)

// line is one line of the table: a measurement, an observation, or both.
type line struct {
	name            string
	unit            string
	better          comparison.Better
	direct, carried []float64
	what            string // the expectation
	ok              bool
	note            string
}

// rounds measures with direct TCP and with smcgw in turns.
func (l *line) rounds(n int, measure func(direct bool) (float64, error)) error {
	for range n {
		direct, err := measure(true)
		if err != nil {
			return err
		}
		carried, err := measure(false)
		if err != nil {
			return err
		}
		l.direct, l.carried = append(l.direct, direct), append(l.carried, carried)
	}
	return nil
}

// table collects the lines.
type table struct {
	out   io.Writer
	lines []line
}

func (r *table) add(l line) { r.lines = append(r.lines, l) }

// print writes the table. It returns ErrExpectation if a line is not as expected.
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
	s := comparison.Series{Values: v}.Spread()
	if s.N == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %s", s.Median, l.unit)
}

// ratio returns smcgw's value divided by that of direct TCP.
func (l *line) ratio() string {
	r := comparison.Report{Series: []comparison.Series{{Variant: comparison.TCP, Values: l.direct}, {Values: l.carried}}}
	s, ok := r.Ratio("", "", comparison.TCP)
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f), %s is better", s.Median, s.Min, s.Max, l.better)
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
