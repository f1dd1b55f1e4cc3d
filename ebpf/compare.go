package ebpf

import bpf "github.com/cilium/ebpf"

// Compared counts connections of one rule that took about as long and moved about as much.
type Compared struct {
	// Rule is the index of the rule that decided. Past says that it is an index of an earlier policy.
	Rule int
	Past bool
	// Offered is true for connections within the share of the rollout; the others are native.
	Offered bool
	// Size is how much they moved in both directions: 0 below 1 KiB, and one more for each factor of 16. Lasted is four
	// times the binary logarithm of the microseconds from connect() to the end.
	Size, Lasted uint8
	// Count is how many such connections have ended.
	Count uint64
}

// SetCompare says whether to compare new connections that this host makes.
func (d *Datapath) SetCompare(on bool) error {
	return d.setControl(func(c *smcgwControl) { c.Compare = bit(on) })
}

// TakeCompared returns the connections that have ended since the last call.
func (d *Datapath) TakeCompared() (list []Compared, err error) {
	const offered = 2 // COMPARED_OFFERED of maps.h
	err = takeAll(d, func(o *objects) *bpf.Map { return o.Compared }, func(k smcgwComparedKey, n uint64, since uint32) {
		list = append(list, Compared{
			Rule: ruleIndex(k.Rule), Past: k.Epoch < since, Offered: k.Kind == offered, Size: k.Size, Lasted: k.Lasted, Count: n,
		})
	})
	return list, err
}
