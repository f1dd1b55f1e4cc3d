package screen

import (
	"strconv"
	"strings"
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

// Part renders how much of a whole something is, empty for that of nothing.
func Part(part, whole uint64) string {
	if whole == 0 {
		return ""
	}
	return strconv.FormatUint(min(part*100/whole, 100), 10) + "%"
}
