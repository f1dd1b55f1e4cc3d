package screen

import (
	"io"
	"strings"
)

// Columns is the maximum length of a line that can be shortened or wrapped.
const Columns = 100

// Screen is a destination of output for people.
type Screen struct {
	out      io.Writer
	terminal int // columns; 0: it is not a terminal
	colour   bool
}

// New returns a screen; terminal is the number of columns of the terminal, 0 if out is not one.
func New(out io.Writer, terminal int, colour bool) *Screen {
	return &Screen{out: out, terminal: terminal, colour: colour && terminal > 0}
}

// Terminal reports whether the output is a terminal.
func (s *Screen) Terminal() bool { return s.terminal > 0 }

// Width returns how long a line may be if it can be wrapped.
func (s *Screen) Width() int {
	if !s.Terminal() {
		return Columns
	}
	return s.columns()
}

// columns returns how long a line of a terminal may be.
func (s *Screen) columns() int { return min(s.terminal, Columns) }

// Style is a way to highlight a text.
type Style string

// The styles, named by their meaning.
const (
	Plain Style = ""
	Title Style = "\x1b[1m"
	Good  Style = "\x1b[32m"
	Warn  Style = "\x1b[33m"
	Bad   Style = "\x1b[31m"
)

const plain = "\x1b[0m"

// Paint highlights a text on a terminal with colours.
func (s *Screen) Paint(as Style, text string) string {
	if !s.colour || as == Plain || text == "" {
		return text
	}
	return string(as) + text + plain
}

// words maps the words of notable states to styles.
var words = map[string]Style{
	"active": Good, "capable": Good, "carrying": Good, "carry": Good, "ok": Good, "closed": Good,
	"native": Warn, "down": Warn, "relay": Warn, "incapable": Warn, "sampling": Warn, "warn": Warn,
	"failed": Bad, "blackholed": Bad, "aborted": Bad, "dead": Bad, "FAIL": Bad, "fail": Bad,
}

// Printable replaces characters that could move the cursor of a terminal: some texts come from other hosts.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
