package nearest

import "strings"

// longest bounds the names that are compared: the work grows with the square.
const longest = 64

// Name returns the known name that is closest to the given one, "" if none is close: a
// third of its letters, at least one and at most three, are wrong, missing, too many or
// in the place of their neighbours. Of equally close ones the first with as many letters
// is taken, else the first.
func Name(given string, known []string) string {
	given = strings.ToLower(strings.NewReplacer("-", "_", " ", "_").Replace(given))
	if given == "" || len(given) > longest {
		return ""
	}
	best, least := "", min(3, max(1, len(given)/3))+1
	for _, name := range known {
		if len(name) > longest {
			continue
		}
		d := distance(given, strings.ToLower(strings.ReplaceAll(name, "-", "_")))
		if d < least || d == least && best != "" && len(name) == len(given) && len(best) != len(given) {
			best, least = name, d
		}
	}
	return best
}

// distance counts the edits between two names: letters replaced, inserted and removed,
// and neighbours swapped.
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
