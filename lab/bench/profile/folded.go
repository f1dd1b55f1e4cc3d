package profile

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Folded are samples by stack, as tools that draw flame graphs want them.
type Folded map[string]int

// Add counts a sample of a process of that role.
func (f Folded) Add(s *Sample, of Role) {
	names := []string{string(of), s.Command}
	for _, frame := range slices.Backward(s.Stack) {
		names = append(names, frame.Symbol)
	}
	for i, name := range names {
		names[i] = strings.ReplaceAll(name, ";", ":")
	}
	f[strings.Join(names, ";")]++
}

// Write writes a line per stack, the outermost function first, and how often it
// was seen.
func (f Folded) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, stack := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(b, "%s %d\n", stack, f[stack])
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write stacks: %w", err)
	}
	return nil
}
