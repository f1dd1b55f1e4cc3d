package ebpf

import (
	"errors"
	"fmt"

	bpf "github.com/cilium/ebpf"
)

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

// putDatagramsLocked tells the programs whether UDP packets need to be looked at: a rule may select one, or the gateway
// has opened its tuple.
func (d *Datapath) putDatagramsLocked() error {
	return d.changeControl(func(c *smcgwControl) {
		c.Datagrams = bit(d.opened.Load() || d.policy.UDP&d.policy.Accelerate != 0)
	})
}

// closeDatagrams stops the programs from looking at UDP packets once the last tuple that the gateway has opened is gone
// and no rule needs it.
func (d *Datapath) closeDatagrams() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.opened.Swap(false) { // before the walk: an OpenDatagram during the walk sets it again
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
