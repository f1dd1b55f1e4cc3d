package comparison

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
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
