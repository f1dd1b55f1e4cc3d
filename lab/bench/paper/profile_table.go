package paper

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/smcgw/smcgw/bench/comparison"
)

// itemsShown is how many items a table has; what is less is added up.
const itemsShown = 9

// lessShares is the row of the items that have none.
const lessShares = "everything else"

// profileRows are the cells of a table of profiles, head first: the items and
// their shares in percent by variant, then what the work costs.
func profileRows(list []Profile, cpus int) (rows [][]string) {
	items := Items(list, itemsShown)
	head := []string{"item"}
	rest, cost := []string{lessShares}, []string{"busy"}
	for _, p := range list {
		head = append(head, p.Variant)
		less := 1.0
		for _, item := range items {
			less -= p.Share(item)
		}
		rest = append(rest, percent(max(less, 0)))
		text := percent(p.Busy())
		if c, unit := p.Cost(p.Busy(), cpus); unit != "" {
			text += fmt.Sprintf(" (%s %s)", comparison.Number(c), unit)
		}
		cost = append(cost, text)
	}
	rows = append(rows, head)
	for _, item := range items {
		row := []string{item}
		for _, p := range list {
			row = append(row, percent(p.Share(item)))
		}
		rows = append(rows, row)
	}
	return append(rows, rest, cost)
}

func percent(share float64) string { return fmt.Sprintf("%.1f", share*100) }

// textProfiles writes where the time went for a terminal.
func (r *Report) textProfiles(w io.Writer) error {
	for _, work := range r.ProfiledWorks() {
		fmt.Fprintf(w, "\n%s: where the time of all processors went (%%)\n", comparison.Plain(work))
		tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		for i, row := range profileRows(r.ProfilesOf(work), r.Machine.CPUs) {
			for j, cell := range row {
				if row[j] = comparison.Plain(cell); i == 0 && j == 0 {
					row[j] = "ITEM"
				}
			}
			fmt.Fprintln(tw, "  "+strings.Join(row, "\t"))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// ProfileMarkdown writes the table of one work's profiles; nothing if it has
// none.
func (r *Report) ProfileMarkdown(w io.Writer, work string) error {
	list := r.ProfilesOf(work)
	if len(list) == 0 {
		return nil
	}
	var b strings.Builder
	for i, row := range profileRows(list, r.Machine.CPUs) {
		for j, cell := range row {
			row[j] = escapeMarkdown(cell)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "|---%s|\n", strings.Repeat("|---:", len(row)-1))
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
