package screen

import (
	"fmt"
	"strings"
	"time"
)

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
