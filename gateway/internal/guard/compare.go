package guard

import (
	"cmp"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
)

const (
	// leastNative is how many native connections of one rule and size must have ended before others are compared with
	// them. Fewer say nothing about the slowest.
	leastNative = 20
	// slowestShare is the fraction of native connections, one in so many, that count as slow. A connection is slower if
	// it took longer than all the others. If offered connections are like native ones, the same fraction of them is.
	slowestShare = 20
	// maxCells bounds the cells kept of a window.
	maxCells = 16384
	// maxLasted exceeds all values of ebpf.Compared.Lasted.
	maxLasted = 256
)

// cell is what the connections of a slot are grouped by.
type cell struct {
	rule         string
	offered      bool
	size, lasted uint8
}

// slot is a part of the window.
type slot struct {
	from, to time.Time
	counts   map[cell]uint64
}

// comparison is how long the connections in a window took. The zero value is empty.
type comparison struct {
	slots []slot // oldest first
	cells int
	// forgotten counts connections that were left out for want of room.
	forgotten uint64
}

// add adds connections that have ended, except those of earlier policies. rule returns the name of the rule with a
// number of the policy in force.
func (c *comparison) add(now time.Time, window time.Duration, list []ebpf.Compared, rule func(int) string) {
	for len(c.slots) > 0 && now.Sub(c.slots[0].to) >= window {
		c.cells -= len(c.slots[0].counts)
		c.slots = c.slots[1:]
	}
	if n := len(c.slots); n == 0 || now.Sub(c.slots[n-1].from) >= window/slots {
		c.slots = append(c.slots, slot{from: now, counts: map[cell]uint64{}})
	}
	last := &c.slots[len(c.slots)-1]
	last.to = now
	counts := last.counts
	for _, v := range list {
		if v.Past {
			continue
		}
		k := cell{rule(v.Rule), v.Offered, v.Size, v.Lasted}
		if counts[k] == 0 {
			if c.cells >= maxCells {
				c.forgotten += v.Count
				continue
			}
			c.cells++
		}
		counts[k] += v.Count
	}
}

// lasting counts connections by how long they took.
type lasting [maxLasted]uint64

func (l *lasting) total() (n uint64) {
	for _, v := range l {
		n += v
	}
	return n
}

// limit returns the time within which all but the slowest share ended.
func (l *lasting) limit(total uint64) int {
	slowest := total / slowestShare
	for i := len(l) - 1; i >= 0; i-- {
		if l[i] > slowest {
			return i
		}
		slowest -= l[i]
	}
	return 0
}

// above counts the connections that took longer than limit.
func (l *lasting) above(limit int) (n uint64) {
	for _, v := range l[limit+1:] {
		n += v
	}
	return n
}

// rules compares the offered connections of each rule with native ones that moved as much, where there are enough of
// these.
func (c *comparison) rules() map[string]report.Compared {
	type group struct {
		rule string
		size uint8
	}
	groups := map[group]*[2]lasting{} // native, offered
	for _, s := range c.slots {
		for k, n := range s.counts {
			g := groups[group{k.rule, k.size}]
			if g == nil {
				g = new([2]lasting)
				groups[group{k.rule, k.size}] = g
			}
			g[index(k.offered)][k.lasted] += n
		}
	}
	out := map[string]report.Compared{}
	for k, g := range groups {
		native, offered := g[0].total(), g[1].total()
		if native < leastNative || offered == 0 {
			continue
		}
		r := out[k.rule]
		r.Native += native
		r.Offered += offered
		r.Slower += g[1].above(g[0].limit(native))
		out[k.rule] = r
	}
	return out
}

func index(offered bool) int {
	if offered {
		return 1
	}
	return 0
}

// worst returns the rule with the greatest share of slower connections, among those with at least least of them.
func worst(rules map[string]report.Compared, least uint64) (name string, c report.Compared, found bool) {
	var names []string
	for n, r := range rules {
		if r.Slower >= least {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "", report.Compared{}, false
	}
	name = slices.MinFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rules[b].Ratio(), rules[a].Ratio()), cmp.Compare(a, b))
	})
	return name, rules[name], true
}
