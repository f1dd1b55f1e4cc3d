package screen

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
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

// barWidth is the width of a bar in columns.
const barWidth = 30

// redraw is the minimum interval of drawing a bar.
const redraw = 100 * time.Millisecond

// Progress shows the progress of long work: on a terminal as one line that is redrawn, otherwise not at all. It must
// not be used by two goroutines at a time.
type Progress struct {
	on    *Screen
	drawn time.Time
	shown bool
}

// Progress starts showing the progress of long work.
func (s *Screen) Progress() *Progress { return &Progress{on: s} }

// Show draws how much of a total is done, and what is being done.
func (p *Progress) Show(done, total float64, doing string) {
	if !p.on.Terminal() || time.Since(p.drawn) < redraw && done < total {
		return
	}
	p.drawn, p.shown = time.Now(), true
	share := 1.0
	if total > 0 {
		share = min(1, max(0, done/total))
	}
	full := int(share * barWidth)
	bar := strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
	line := fmt.Sprintf("%s %3.0f%%  %s", p.on.Paint(Good, bar), share*100, cut(Printable(doing), p.on.columns()-barWidth-8))
	fmt.Fprint(p.on.out, "\r"+line+"\x1b[K")
}

// Clear removes the line, so that the next output begins there.
func (p *Progress) Clear() {
	if p.shown {
		fmt.Fprint(p.on.out, "\r\x1b[K")
		p.shown = false
	}
}
