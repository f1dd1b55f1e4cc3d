package screen

import (
	"strconv"
	"strings"
	"time"
)

// Size renders a number of bytes for people, as one word.
func Size(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + units[u]
}

// Part renders a fraction of a whole; empty if the whole is zero.
func Part(part, whole uint64) string {
	if whole == 0 {
		return ""
	}
	return strconv.FormatUint(min(part*100/whole, 100), 10) + "%"
}

// RoundTrip renders a short duration.
func RoundTrip(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Microsecond).String()
}

// Moment renders a time: the time of day within the last day, otherwise the date. The zero time is empty.
func Moment(at, now time.Time) string {
	switch {
	case at.IsZero():
		return ""
	case now.Sub(at) < 24*time.Hour:
		return at.Local().Format(time.TimeOnly)
	default:
		return at.Local().Format(time.DateOnly)
	}
}
