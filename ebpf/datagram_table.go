package ebpf

import (
	"errors"
	"fmt"
	"time"

	bpf "github.com/cilium/ebpf"
)

// Datagram is a copy of a tuple's datagram entry.
type Datagram struct {
	Tuple Tuple
	// Side of the local application: client where the policy selected its
	// datagrams, server where the gateway opened the tuple.
	Side Side
	// Reason is why the last datagram was native, 0 if it was carried.
	Reason uint8
	// Rule is the index of the rule that decided, or NoRule.
	Rule int
	// Ifindex is the wire device.
	Ifindex int
	// Packets and Bytes count datagrams and payload of the local application,
	// carried or native, since there is an entry.
	Packets, Bytes uint64
	// Seen is the time of the last datagram, on the kernel's monotonic clock.
	Seen time.Duration
}

// datagram decodes an entry.
func (v *smcgwDgram) datagram(k smcgwFlowKey) Datagram {
	return Datagram{
		Tuple: k.tuple(), Side: Side(v.Side), Reason: v.Reason, Rule: ruleIndex(v.Rule), Ifindex: int(v.Ifindex),
		Packets: v.Packets, Bytes: v.Bytes, Seen: time.Duration(v.Seen),
	}
}

// Datagrams copies the entries of all tuples, native ones included. Entries that
// changed meanwhile may be missed.
func (d *Datapath) Datagrams() (all []Datagram, err error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	for _, m := range d.datagramMaps() {
		err := walkDatagrams(m, func(k smcgwFlowKey, v *smcgwDgram) bool {
			all = append(all, v.datagram(k))
			return true
		})
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// walkDatagrams visits the entries of a map in batches until fn returns false.
func walkDatagrams(m *bpf.Map, fn func(smcgwFlowKey, *smcgwDgram) bool) error {
	keys, values := make([]smcgwFlowKey, walkBatch), make([]smcgwDgram, walkBatch)
	var at bpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&at, keys, values, nil)
		for i := range n {
			if !fn(keys[i], &values[i]) {
				return nil
			}
		}
		if errors.Is(err, bpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("datagram entries: %w", err)
		}
	}
}

// putDatagramsLocked tells the programs whether any UDP packet needs a look: a
// rule could select it, or the gateway opened its tuple.
func (d *Datapath) putDatagramsLocked() error {
	return d.changeControl(func(c *smcgwControl) {
		c.Datagrams = bit(d.opened.Load() || d.policy.UDP&d.policy.Accelerate != 0)
	})
}

// closeDatagrams ends the look at UDP packets when the last tuple that the
// gateway opened is gone and no rule asks for it.
func (d *Datapath) closeDatagrams() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.opened.Swap(false) { // before the walk: what is opened meanwhile says so again
		return nil
	}
	open := false
	err := walkDatagrams(d.objs.Datagrams, func(_ smcgwFlowKey, v *smcgwDgram) bool {
		open = v.State == dgramOpen
		return !open
	})
	if open || err != nil {
		d.opened.Store(true)
	}
	if err != nil {
		return err
	}
	return d.putDatagramsLocked()
}
