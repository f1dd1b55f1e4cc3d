package screen

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// leastText is the minimum width to which text is wrapped.
const leastText = 30

// Field returns a line with a name of ten columns and a text, which is wrapped beside it.
func (s *Screen) Field(name, text string) string {
	const indent = 11
	padded := name + strings.Repeat(" ", max(1, indent-utf8.RuneCountInString(name)))
	return padded + s.Hang(text, indent) + "\n"
}

// Paragraph wraps a text.
func (s *Screen) Paragraph(text string) string {
	return s.Hang(text, 0) + "\n"
}

// Prose fits hand-wrapped paragraphs to a terminal that is narrower than they are. Paragraphs with an indented line,
// such as lists, are not changed.
func (s *Screen) Prose(text string) string {
	if !s.Terminal() {
		return text
	}
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		wide := slices.ContainsFunc(strings.Split(p, "\n"), func(line string) bool { return utf8.RuneCountInString(line) > s.columns() })
		if wide && !strings.Contains("\n"+p, "\n ") {
			paragraphs[i] = s.Hang(strings.ReplaceAll(p, "\n", " "), 0)
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// Hang wraps a text that begins at a column, and indents its further lines to that column.
func (s *Screen) Hang(text string, indent int) string {
	text = Printable(text)
	if s.columns()-indent < leastText {
		return text
	}
	at := indent
	var b strings.Builder
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > s.columns():
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}
