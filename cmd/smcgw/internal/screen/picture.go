package screen

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Rows returns how many lines a terminal has.
func Rows(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if _, rows, err := term.GetSize(int(f.Fd())); err == nil && rows > 0 {
			return rows
		}
	}
	return 24
}

// Fitted returns a text as lines for a raw terminal, at most as many as it has.
func Fitted(text string, rows int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return strings.Join(lines[:min(len(lines), rows)], "\x1b[K\r\n") + "\x1b[K"
}
