package page

import (
	"fmt"
	"math"
	"strings"
)

// The drawing area of a sparkline, in its own units.
const (
	sparkWidth  = 240.0
	sparkHeight = 40.0
)

// Line is one line of a sparkline.
type Line struct {
	Class  string // class in the style sheet
	Points string // points of a polyline
	Area   string // points of a polygon: the line, then down to the axis and back
}

// Spark is a sparkline: lines over the recorded time, with the newest value at the right
// edge, scaled from 0 to Most.
type Spark struct {
	Lines []Line
	Most  float64
	Label string // for people who cannot see it
}

// newSpark draws series with a common unit. Series too short for a line are left out.
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
