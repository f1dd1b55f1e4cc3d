package page

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// size renders a number of bytes.
func size(n uint64) string { return sizeOf(float64(n)) }

func sizeOf(v float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	u := 0
	for v >= 1023.5 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	return short(v) + "\u00a0" + units[u]
}

// rate renders bytes per second.
func rate(perSecond float64) string { return sizeOf(perSecond) + "/s" }

// short renders a number with about three digits.
func short(v float64) string {
	switch {
	case v != 0 && math.Abs(v) < 9.95:
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
	default:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
}

// count renders a number with separated thousands.
func count(n any) string {
	text := fmt.Sprint(n)
	if v, ok := n.(float64); ok {
		text = short(v)
	}
	if strings.Contains(text, ".") {
		return text
	}
	var b strings.Builder
	for i, d := range text {
		if i > 0 && (len(text)-i)%3 == 0 && text[i-1] != '-' {
			b.WriteString("\u202f")
		}
		b.WriteRune(d)
	}
	return b.String()
}

// plural renders a number of things.
func plural[N int | uint64](n N, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return count(n) + " " + thing
}

// age renders seconds in the two largest units.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return strconv.FormatInt(max(0, d.Milliseconds()), 10) + "\u00a0ms"
	case d < time.Minute:
		return short(d.Seconds()) + "\u00a0s"
	case d < time.Hour:
		return fmt.Sprintf("%dm\u00a0%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh\u00a0%dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd\u00a0%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

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
