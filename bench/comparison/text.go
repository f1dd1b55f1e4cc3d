package comparison

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Text writes the report for a terminal: a table per work, and under each the
// line that says where plain TCP wins.
func (r *Report) Text(w io.Writer) error { return r.TextWith(w, nil) }

// TextWith is Text with tables of the caller before the notes.
func (r *Report) TextWith(w io.Writer, tables func(io.Writer) error) error {
	b := bufio.NewWriter(w)
	for _, line := range r.Machine.Lines() {
		fmt.Fprintln(b, line)
	}
	for _, work := range r.Works() {
		if err := r.textWork(b, work); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	if len(r.Series) == 0 {
		fmt.Fprintln(b, "nothing was measured")
	}
	if tables != nil {
		if err := tables(b); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	for i, note := range r.Notes {
		if i == 0 {
			fmt.Fprintln(b)
		}
		fmt.Fprintln(b, Plain(note))
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r *Report) textWork(w io.Writer, work string) error {
	list := r.Of(work)
	fmt.Fprintf(w, "\n%s (%s)\n", Plain(work), strings.TrimPrefix(Plain(list[0].Unit)+", "+Direction(list[0].Better), ", "))
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "  VARIANT\tMEDIAN\tMIN\tMAX\tROUNDS\tVS TCP\tNOTE")
	for _, s := range list {
		sp := s.Spread()
		cells := []string{Plain(s.Variant), Number(sp.Median), Number(sp.Min), Number(sp.Max), Rounds(s, sp), r.Versus(s), Plain(s.Note)}
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
