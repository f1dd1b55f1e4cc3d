package screen

import (
	"io"
	"strings"
)

// Columns is the most that a line takes, where it can be shortened or wrapped.
const Columns = 100

// Screen is where output for people goes.
type Screen struct {
	out      io.Writer
	terminal int // columns; 0: it is no terminal
	colour   bool
}

// New returns a screen; terminal is how many columns a terminal has, 0 if out is not one.
func New(out io.Writer, terminal int, colour bool) *Screen {
	return &Screen{out: out, terminal: terminal, colour: colour && terminal > 0}
}

// Terminal reports whether someone looks on.
func (s *Screen) Terminal() bool { return s.terminal > 0 }

// Width is how long a line may be, where it can be wrapped.
func (s *Screen) Width() int {
	if !s.Terminal() {
		return Columns
	}
	return s.columns()
}

// columns is how long a line of a terminal may be.
func (s *Screen) columns() int { return min(s.terminal, Columns) }

// Style is a way to highlight a text.
type Style string

// The styles, by what they say.
const (
	Plain Style = ""
	Title Style = "\x1b[1m"
	Good  Style = "\x1b[32m"
	Warn  Style = "\x1b[33m"
	Bad   Style = "\x1b[31m"
)

const plain = "\x1b[0m"

// Paint highlights a text, on a terminal that takes colours.
func (s *Screen) Paint(as Style, text string) string {
	if !s.colour || as == Plain || text == "" {
		return text
	}
	return string(as) + text + plain
}

// words are those of states that are worth a look.
var words = map[string]Style{
	"active": Good, "capable": Good, "carrying": Good, "carry": Good, "ok": Good, "closed": Good,
	"native": Warn, "down": Warn, "relay": Warn, "incapable": Warn, "sampling": Warn, "warn": Warn,
	"failed": Bad, "blackholed": Bad, "aborted": Bad, "dead": Bad, "FAIL": Bad, "fail": Bad,
}

// Printable replaces what could move the cursor of a terminal: some texts come from other
// hosts.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
