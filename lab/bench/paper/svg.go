package paper

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/smcgw/smcgw/bench/comparison"
)

// The measures of the chart, in pixels.
const (
	chartWidth = 820
	chartLeft  = 170 // end of the labels
	chartRight = 560 // end of the longest bar or whisker
	chartTop   = 16
	rowHeight  = 24
	barHeight  = 14
	headHeight = 34
	maxLabel   = 22 // characters of a label
	maxNote    = 38 // characters beside a bar
)

// palette has the colours of the variants after plain TCP, which is grey; they
// stay apart for colour-blind readers, on white and on black.
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8a63d2", "#6b8e23"}

const grey = "#8a8a8a"

// style follows the reader's light or dark surroundings.
const style = `<style>
.page{fill:#ffffff}.text{fill:#1f2328}.soft{fill:#59636e}.line{stroke:#1f2328}.axis{stroke:#d1d9e0}
@media (prefers-color-scheme: dark){.page{fill:#0d1117}.text{fill:#f0f6fc}.soft{fill:#9198a1}.line{stroke:#f0f6fc}.axis{stroke:#3d444d}}
text{font-family:system-ui,sans-serif;font-size:12px}.head{font-size:14px;font-weight:600}
</style>
`

// SVG writes a chart: a group of bars per work, a bar per variant with the
// median, and a line from the worst to the best round. The works have scales of
// their own, from zero.
func (r *Report) SVG(w io.Writer) error {
	works := r.Works()
	height := 2 * chartTop
	for _, work := range works {
		height += headHeight + rowHeight*len(r.Of(work))
	}
	height = max(height, 4*chartTop)
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="Comparison with plain TCP">`+"\n",
		chartWidth, height, chartWidth, height)
	fmt.Fprint(b, style)
	fmt.Fprintf(b, `<rect class="page" width="%d" height="%d"/>`+"\n", chartWidth, height)
	if len(works) == 0 {
		label(b, "soft", "start", chartTop, 2*chartTop, "nothing was measured")
	}
	y, colours := chartTop, r.colours()
	for _, work := range works {
		y = r.svgWork(b, work, y, colours)
	}
	fmt.Fprintln(b, "</svg>")
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write chart: %w", err)
	}
	return nil
}

// colours gives every variant a colour that it keeps through all works.
func (r *Report) colours() map[string]string {
	var names []string
	for _, s := range r.Series {
		if s.Variant != comparison.TCP && !slices.Contains(names, s.Variant) {
			names = append(names, s.Variant)
		}
	}
	m := map[string]string{comparison.TCP: grey}
	for i, n := range names {
		m[n] = palette[i%len(palette)]
	}
	return m
}

// svgWork draws one group from y on and returns where it ends.
func (r *Report) svgWork(b *bufio.Writer, work string, y int, colours map[string]string) int {
	list := r.Of(work)
	label(b, "text head", "start", chartTop, y+18, short(work, 3*maxLabel))
	label(b, "soft", "end", chartWidth-chartTop, y+18, short(list[0].Unit, maxLabel)+", "+comparison.Direction(list[0].Better))
	y += headHeight
	top := 0.0
	for _, s := range list {
		if sp := s.Spread(); sp.N > 0 {
			top = max(top, sp.Max)
		}
	}
	fmt.Fprintf(b, `<path class="axis" d="M%d %dV%d"/>`+"\n", chartLeft, y-4, y+rowHeight*len(list)-4)
	for _, s := range list {
		r.svgBar(b, s, y, top, colours[s.Variant])
		y += rowHeight
	}
	return y
}

// svgBar draws one variant: name, bar, spread, and beside it the numbers.
func (r *Report) svgBar(b *bufio.Writer, s comparison.Series, y int, top float64, colour string) {
	label(b, "text", "end", chartLeft-8, y+barHeight-2, short(s.Variant, maxLabel))
	sp := s.Spread()
	end := chartLeft
	if sp.N > 0 && top > 0 {
		median, low, high := along(sp.Median, top), along(sp.Min, top), along(sp.Max, top)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`+"\n", chartLeft, y, median-chartLeft, barHeight, colour)
		if sp.N > 1 {
			mid := y + barHeight/2
			fmt.Fprintf(b, `<path class="line" d="M%.1f %dH%.1fM%.1f %dv6M%.1f %dv6"/>`+"\n", low, mid, high, low, mid-3, high, mid-3)
		}
		end = int(math.Ceil(max(median, high)))
	}
	var words []string
	for _, word := range []string{comparison.Number(sp.Median), r.Versus(s), short(s.Note, maxNote)} {
		if word != "" && word != "-" {
			words = append(words, word)
		}
	}
	if sp.N == 0 && s.Note == "" {
		words = []string{"no round succeeded"}
	}
	label(b, "soft", "start", end+8, y+barHeight-2, strings.Join(words, " · "))
}

// along is the place of a value between the axis and the right end.
func along(v, top float64) float64 {
	return chartLeft + (chartRight-chartLeft)*min(1, max(0, v/top))
}

// label writes a text, escaped.
func label(b *bufio.Writer, class, anchor string, x, y int, s string) {
	fmt.Fprintf(b, `<text class="%s" text-anchor="%s" x="%d" y="%d">`, class, anchor, x, y)
	_ = xml.EscapeText(b, []byte(comparison.Plain(s))) // the error stays in b until Flush
	fmt.Fprint(b, "</text>\n")
}

// short cuts what would run into its neighbours.
func short(s string, n int) string {
	r := []rune(comparison.Plain(s))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}
