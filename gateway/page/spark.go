package page

import (
	"fmt"
	"math"
	"strings"
)

// The drawing area of a sparkline, in units of its own.
const (
	sparkWidth  = 240.0
	sparkHeight = 40.0
)

// Line is one line of a sparkline.
type Line struct {
	Class  string // of the style sheet
	Points string // of a polyline
	Area   string // the same down to the axis and back: of a polygon
}

// Spark is a sparkline: lines over the time that is known, the newest value at the right
// edge, from 0 to Most.
type Spark struct {
	Lines []Line
	Most  float64
	Label string // for readers that do not see it
}

// newSpark draws series of one unit. Series that are not long enough for a line have none.
func newSpark(label string, series map[string][]float64, order ...string) Spark {
	s := Spark{Label: label}
	for _, class := range order {
		for _, v := range series[class] {
			s.Most = math.Max(s.Most, v)
		}
	}
	for _, class := range order {
		if len(series[class]) < 2 {
			continue
		}
		line := newLine(class, series[class], s.Most)
		if s.Most == 0 {
			line.Class = "flat"
		}
		s.Lines = append(s.Lines, line)
	}
	return s
}

func newLine(class string, list []float64, most float64) Line {
	step := sparkWidth / float64(len(list)-1)
	var b strings.Builder
	for i, v := range list {
		y := sparkHeight - 1
		if most > 0 {
			y -= v / most * (sparkHeight - 2)
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", step*float64(i), y)
	}
	points := strings.TrimSpace(b.String())
	return Line{class, points, fmt.Sprintf("0,%g %s %g,%g", sparkHeight, points, sparkWidth, sparkHeight)}
}
