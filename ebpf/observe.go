package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	bpf "github.com/cilium/ebpf"
)

// attachCounting attaches what a datapath with [Config.Counting] has, in ModeObserve
// alone: with the mode off nothing is looked at.
func (d *Datapath) attachCounting() error {
	if d.cfg.Mode != ModeObserve {
		return nil
	}
	return d.attachOffering()
}

// recountLocked attaches or detaches what counts when the mode changes.
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
	// Side is that of this host, Host the other one, Port the server's.
	Side Side
	Host netip.Addr
	Port uint16
	// Rule is the index of the rule that decided, or NoRule; Past: of an earlier policy.
	Rule int
	Past bool
	// Carries: the policy would have them carried.
	Carries bool
	// Begun and Ended count connections. What follows is of those that have ended.
	Begun, Ended uint64
	// Sent and Received are their bytes. The kernel counts SYN and FIN as one each.
	Sent, Received uint64
	// Bulk are those that moved bulk, both ways, in a time that is added up.
	Bulk, BulkBytes uint64
	BulkLasted      time.Duration
}

// TakeSeen returns what was seen since it was called last, of a datapath with
// [Config.Counting].
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

// takeAll empties a table into fn, and tells it since which epoch rules have the numbers of
// the policy in force. What a program counts between the look at an entry and its removal is
// lost.
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
