package ebpf

import (
	"math"
	"time"
)

// Compared are connections of a rule that took about as long, and moved about as much.
type Compared struct {
	// Rule is the index of the rule that decided; Past: of an earlier policy.
	Rule int
	Past bool
	// Offered are those in the share of the rollout; the others are native.
	Offered bool
	// Size and Lasted say how much and how long, by [ComparedSize] and [ComparedLasted].
	Size, Lasted uint8
	// Count is how many have ended.
	Count uint64
}

// ComparedSizes is how many sizes are told apart.
const ComparedSizes = 6

// ComparedSize is what connections of a size moved less than, both ways; 0: the largest
// ones, without a bound.
func ComparedSize(size uint8) uint64 {
	if size >= ComparedSizes-1 {
		return 0
	}
	return 1 << (10 + 4*size)
}

// ComparedLasted is what connections took less than, from connect() to their end.
func ComparedLasted(lasted uint8) time.Duration {
	next := uint64(lasted) + 1
	if next < 8 { // the programs use no others of these than 0 to 3
		return time.Duration(min(next, 4)) * time.Microsecond
	}
	us := (4 + next&3) << (next>>2 - 2)
	if next>>2 >= 52 || us > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// SetCompare says whether new connections are compared that this host makes.
func (d *Datapath) SetCompare(on bool) error {
	return d.setControl(func(c *smcgwControl) { c.Compare = bit(on) })
}

// TakeCompared returns what has ended since it was called last.
func (d *Datapath) TakeCompared() ([]Compared, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	d.mu.Lock()
	since := d.rulesSince
	d.mu.Unlock()
	var list []Compared
	err := takeAll(d.objs.Compared, func(k smcgwComparedKey, n uint64) {
		list = append(list, Compared{
			Rule: ruleIndex(k.Rule), Past: k.Epoch < since, Offered: k.Kind == comparedOffered,
			Size: k.Size, Lasted: k.Lasted, Count: n,
		})
	})
	return list, err
}

// comparedOffered is COMPARED_OFFERED of maps.h.
const comparedOffered = 2
