package profile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/smcgw/smcgw/lab/bench/paper"
)

// Tally counts samples. The zero value is ready. It is for one goroutine.
type Tally struct {
	total int
	items map[Item]*part
}

// part is what was counted of one item.
type part struct {
	total     int
	by        map[Role]int
	functions map[string]int
}

// Add counts a sample of a process of that role.
func (t *Tally) Add(s *Sample, of Role) {
	item := Classify(s.Stack, of)
	p := t.items[item]
	if p == nil {
		if t.items == nil {
			t.items = map[Item]*part{}
		}
		p = &part{by: map[Role]int{}, functions: map[string]int{}}
		t.items[item] = p
	}
	t.total++
	p.total++
	p.by[of]++
	p.functions[s.innermost(item)]++
}

// innermost names where a sample was: the function, or the program where that
// says more.
func (s *Sample) innermost(item Item) string {
	if item == Machine || len(s.Stack) == 0 {
		return s.Command
	}
	return s.Stack[0].Symbol
}

// functionsShown is how many functions of an item are named.
const functionsShown = 5

// Parts returns what was counted, the largest first. The shares are of all
// samples, and together 1.
func (t *Tally) Parts() (list []paper.Part) {
	for item, p := range t.items {
		out := paper.Part{Item: string(item), Share: t.share(p.total), By: map[string]float64{}}
		for role, n := range p.by {
			out.By[string(role)] = t.share(n)
		}
		names := slices.SortedFunc(maps.Keys(p.functions), func(a, b string) int {
			return cmp.Or(cmp.Compare(p.functions[b], p.functions[a]), cmp.Compare(a, b))
		})
		for _, name := range names[:min(len(names), functionsShown)] {
			out.Functions = append(out.Functions, fmt.Sprintf("%s %.1f %%", name, t.share(p.functions[name])*100))
		}
		list = append(list, out)
	}
	slices.SortFunc(list, func(a, b paper.Part) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Item, b.Item))
	})
	return list
}

// Samples is how many were counted.
func (t *Tally) Samples() int { return t.total }

func (t *Tally) share(n int) float64 { return float64(n) / float64(t.total) }
