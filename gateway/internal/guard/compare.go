package guard

import (
	"cmp"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
)

const (
	// leastNative is how many native connections of a rule and size have to have ended
	// for others to be compared with them: less say nothing about the slowest of them.
	leastNative = 20
	// slowestShare: one connection is slower if it took longer than all native ones but
	// one in so many. Of connections that are like native ones as many are.
	slowestShare = 20
	// maxCells bounds what is kept of a window.
	maxCells = 16384
	// maxLasted is above all values of ebpf.Compared.Lasted.
	maxLasted = 256
)

// cell is what connections of a slot have in common.
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

// comparison is how long the connections of a window took. The zero value is empty.
type comparison struct {
	slots []slot // the oldest first
	cells int
	// forgotten counts connections for which there was no room.
	forgotten uint64
}

// add takes in connections that have ended; rule names the rule with a number of the
// policy in force. Those of earlier policies are left out.
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

// limit is the time that all but the slowest took at most.
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

// above counts those that took longer.
func (l *lasting) above(limit int) (n uint64) {
	for _, v := range l[limit+1:] {
		n += v
	}
	return n
}

// rules compares the connections of each rule with native ones that moved as much, where
// there are enough of these.
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

// worst is the rule with the greatest share of slower connections, of those that at least
// so many of are slower.
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
