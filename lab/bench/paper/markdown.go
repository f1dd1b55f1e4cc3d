package paper

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/smcgw/smcgw/bench/comparison"
)

// Markdown writes the report as a section of a page, without a heading of its
// own: the machine, the commands, a table per work with its verdict, the notes.
func (r *Report) Markdown(w io.Writer) error {
	b := bufio.NewWriter(w)
	for i, line := range r.Machine.Lines() {
		if i > 0 {
			fmt.Fprint(b, "\\\n")
		}
		fmt.Fprint(b, escapeMarkdown(line))
	}
	if r.Rounds > 0 {
		fmt.Fprintf(b, "\\\n%d rounds, interleaved: medians, extremes in brackets, ratios of values of the same round", r.Rounds)
	}
	fmt.Fprintln(b)
	r.markdownCommands(b)
	for _, work := range r.Works() {
		r.markdownWork(b, work)
	}
	if len(r.Notes) > 0 {
		fmt.Fprintln(b)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(b, "- %s\n", escapeMarkdown(note))
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// markdownCommands writes an indented block, which no text can end from within.
func (r *Report) markdownCommands(b *bufio.Writer) {
	if len(r.Commands) > 0 {
		fmt.Fprintln(b)
	}
	for _, c := range r.Commands {
		fmt.Fprintf(b, "    %s\n", comparison.Plain(c))
	}
}

func (r *Report) markdownWork(b *bufio.Writer, work string) {
	list := r.Of(work)
	fmt.Fprintf(b, "\n**%s** (%s)\n\n", escapeMarkdown(work), strings.TrimPrefix(escapeMarkdown(list[0].Unit)+", "+comparison.Direction(list[0].Better), ", "))
	fmt.Fprintln(b, "| variant | median | rounds | × TCP | note |")
	fmt.Fprintln(b, "|---|---:|---:|---:|---|")
	for _, s := range list {
		sp := s.Spread()
		value := comparison.Number(sp.Median)
		if sp.N > 1 {
			value += fmt.Sprintf(" (%s–%s)", comparison.Number(sp.Min), comparison.Number(sp.Max))
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", escapeMarkdown(s.Variant), value, comparison.Rounds(s, sp),
			strings.ReplaceAll(r.Versus(s), "×", ""), escapeMarkdown(s.Note))
	}
	verdict := escapeMarkdown(r.Verdict(work))
	fmt.Fprintf(b, "\n%s.\n", strings.ToUpper(verdict[:1])+verdict[1:])
}

// escapeMarkdown makes a text mean itself, also in a cell of a table.
func escapeMarkdown(s string) string {
	var b strings.Builder
	for _, r := range comparison.Plain(s) {
		switch r {
		case '<':
			b.WriteString("&lt;")
			continue
		case '>':
			b.WriteString("&gt;")
			continue
		case '&':
			b.WriteString("&amp;")
			continue
		case '\\', '`', '*', '_', '[', ']', '|', '~', '#':
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
