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
