package nearest

import "strings"

// longest bounds the names that are compared, because the work grows with the square of their length.
const longest = 64

// Name returns the known name that is closest to the given one, or "" if none is close. A name is close if a third of
// the letters, at least one and at most three, are wrong, missing, superfluous, or swapped with their neighbours. Among
// equally close names it prefers the first that begins with the given one, which may be unfinished, or else the first of
// the same length, or else the first.
func Name(given string, known []string) string {
	given = strings.ToLower(strings.NewReplacer("-", "_", " ", "_").Replace(given))
	if given == "" || len(given) > longest {
		return ""
	}
	best, least, likes := "", min(3, max(1, len(given)/3))+1, 0
	for _, name := range known {
		if len(name) > longest {
			continue
		}
		folded := strings.ToLower(strings.ReplaceAll(name, "-", "_"))
		d, like := distance(given, folded), likeness(given, folded)
		if d < least || d == least && best != "" && like > likes {
			best, least, likes = name, d, like
		}
	}
	return best
}

// likeness orders equally close names.
func likeness(given, name string) int {
	switch {
	case strings.HasPrefix(name, given):
		return 2
	case len(name) == len(given):
		return 1
	default:
		return 0
	}
}

// distance counts the edits between two names: replaced, inserted and removed letters, and swapped neighbours.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
