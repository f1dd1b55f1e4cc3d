package comparison

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Text writes the report for a terminal: a table per work, each followed by the line that says where plain TCP wins.
func (r *Report) Text(w io.Writer) error {
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

func (r *Report) textWork(w io.Writer, work string) error {
	list := r.Of(work)
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
