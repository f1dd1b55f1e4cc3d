package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	bpf "github.com/cilium/ebpf"
)

// attachCounting attaches the programs of a datapath with [Config.Counting]. It does so only in ModeObserve; in ModeOff
// nothing is looked at.
func (d *Datapath) attachCounting() error {
	if d.cfg.Mode != ModeObserve {
		return nil
	}
	return d.attachOffering()
}

// recountLocked changes the mode, and attaches or detaches the counting programs accordingly.
func (d *Datapath) recountLocked(m Mode) error {
	switch {
	case !d.counting:
		d.cfg.Mode = m
		return nil
	case m == d.cfg.Mode:
		return nil
	case m == ModeEnforce:
		return errors.New("a datapath that counts cannot carry")
	}
	d.cfg.Mode = m
	if m == ModeObserve {
		return d.attachOffering()
	}
	return d.detachOffering()
}

// Seen is what connections of a service with a host have done while nothing was carried.
type Seen struct {
	// Side is the side of this host, Host the other one, and Port the server's port.
	Side Side
	Host netip.Addr
	Port uint16
	// Rule is the index of the rule that decided, or NoRule. Past says that it is an index of an earlier policy.
	Rule int
	Past bool
	// Carries says that the policy would have them carried.
	Carries bool
	// Begun and Ended count connections. The fields below cover only those that have ended.
	Begun, Ended uint64
	// Sent and Received count their bytes. The kernel counts SYN and FIN as one byte each.
	Sent, Received uint64
	// Bulk counts connections with bulk transfers, BulkBytes their bytes in both directions, and BulkLasted adds up
	// their durations.
	Bulk, BulkBytes uint64
	BulkLasted      time.Duration
}

// TakeSeen returns what was seen since the last call, on a datapath with [Config.Counting].
func (d *Datapath) TakeSeen() (list []Seen, err error) {
	err = takeAll(d, func(o *objects) *bpf.Map { return o.Seen }, func(k smcgwSeenKey, v smcgwSeen, since uint32) {
		list = append(list, Seen{
			Side: Side(k.Side), Host: addrFrom(k.Addr, k.Family), Port: wirePort(k.Port),
			Rule: ruleIndex(k.Rule), Past: k.Epoch < since, Carries: k.Carries != 0,
			Begun: v.Begun, Ended: v.Ended, Sent: v.Sent, Received: v.Received,
			Bulk: v.Bulk, BulkBytes: v.BulkBytes, BulkLasted: time.Duration(v.BulkLasted),
		})
	})
	return list, err
}

// takeAll empties a map into fn. since is the epoch since which rules have the numbers of the active policy. What a
// program adds to an entry between its lookup and its removal is lost.
func takeAll[K comparable, V any](d *Datapath, of func(*objects) *bpf.Map, fn func(k K, v V, since uint32)) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	m := of(d.objs)
	d.mu.Lock()
	since := d.rulesSince
	d.mu.Unlock()
	keys, err := keysWhere(m, func(K) bool { return true })
	if err != nil && !errors.Is(err, bpf.ErrIterationAborted) {
		return fmt.Errorf("%v: %w", m, err)
	}
	for _, k := range keys {
		var v V
		if err := m.LookupAndDelete(k, &v); err == nil {
			fn(k, v, since)
		} else if !errors.Is(err, bpf.ErrKeyNotExist) {
			return fmt.Errorf("%v: %w", m, err)
		}
	}
	return nil
}

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
