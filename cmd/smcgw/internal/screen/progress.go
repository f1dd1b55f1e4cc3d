package screen

import (
	"fmt"
	"strings"
	"time"
)

// barWidth is how many columns a bar takes.
const barWidth = 30

// redraw is how often a bar is drawn at most.
const redraw = 100 * time.Millisecond

// Progress shows how far long work is: on a terminal one line that is drawn again, else
// nothing. Its methods may be called by one goroutine at a time.
type Progress struct {
	on    *Screen
	drawn time.Time
	shown bool
}

// Progress begins to show long work.
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

// Clear removes the line: what is printed next begins where it was.
func (p *Progress) Clear() {
	if p.shown {
		fmt.Fprint(p.on.out, "\r\x1b[K")
		p.shown = false
	}
}
