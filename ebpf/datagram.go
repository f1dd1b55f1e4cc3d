package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	bpf "github.com/cilium/ebpf"
)

// DatagramPeer is what the gateway knows about datagrams to a peer.
type DatagramPeer struct {
	// Addr and Port identify the peer; port 0 stands for the whole address. An entry for a port takes precedence over
	// one for the address.
	Addr netip.Addr
	Port uint16
	// Capable says that its gateway accepts datagrams from ours.
	Capable bool
	// Reason is why datagrams to it stay native, if it is not capable.
	Reason uint8
	// TTL is how long the entry is valid; 0 means until it is replaced or forgotten.
	TTL time.Duration
}

// States of a datagram entry, enum dgram_state of maps.h.
const (
	dgramNative = iota + 1
	dgramSelected
	dgramOpen
)

// SetDatagramPeer adds or replaces a peer. It takes effect with the next datagram, for existing tuples, too.
func (d *Datapath) SetDatagramPeer(p DatagramPeer) error {
	k, err := peerKey(p.Addr, p.Port)
	if err != nil {
		return err
	}
	if p.Capable == (p.Reason != 0) || p.TTL < 0 {
		return fmt.Errorf("datagram peer %v: capable %t, reason %d, ttl %v", p.Addr, p.Capable, p.Reason, p.TTL)
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	v := smcgwDgramPeer{Until: deadline(p.TTL), Capable: uint8(bit(p.Capable)), Reason: p.Reason}
	if err := d.objs.DatagramPeers.Put(k, v); err != nil {
		return fmt.Errorf("datagram peer %v: %w", p.Addr, err)
	}
	return nil
}

// ForgetDatagramPeer removes a peer, if it is known.
func (d *Datapath) ForgetDatagramPeer(addr netip.Addr, port uint16) error {
	return d.forget(func(o *objects) *bpf.Map { return o.DatagramPeers }, "datagram peer", addr, port)
}

// deadline returns the time ttl from now on the programs' clock, or 0 (never) for 0.
func deadline(ttl time.Duration) uint64 {
	if ttl <= 0 {
		return 0
	}
	return Now() + uint64(ttl)
}

// OpenDatagram makes an entry for the tuple of a datagram that a peer gateway has sent. What is written to the app TUN
// for the tuple arrives on the device ifindex. What the local application answers is carried, whatever the policy says
// about answers, unless the peer is known not to be capable. rule is the one that [Datapath.Decide] returned.
func (d *Datapath) OpenDatagram(t Tuple, ifindex, rule int) error {
	k, err := t.key()
	if err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if !d.isAttached(ifindex) {
		return fmt.Errorf("datagram %v: interface %d: %w", t, ifindex, ErrNoDevice)
	}
	v, err := d.datagram(k)
	if err != nil && !errors.Is(err, ErrNoFlow) {
		return err
	}
	v.State, v.Reason, v.Told, v.Until, v.Epoch = dgramOpen, 0, 0, 0, 0
	v.Ifindex, v.Rule, v.Side, v.Seen = uint32(ifindex), ruleSlot(rule), uint8(SideServer), Now()
	if err := d.putDatagram(k, v); err != nil {
		return err
	}
	if d.opened.Load() {
		return nil
	}
	d.opened.Store(true)
	return d.changeControl(func(c *smcgwControl) { c.Datagrams = 1 })
}

// CloseDatagram stops carrying the datagrams of a tuple, whichever side began. They are native with the given reason
// for ttl, and then decided again. With a ttl of 0 the entry is deleted; nothing can then be written to the app TUN for
// the tuple.
func (d *Datapath) CloseDatagram(t Tuple, reason uint8, ttl time.Duration) error {
	k, err := t.key()
	if err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if ttl <= 0 {
		return d.deleteDatagram(k)
	}
	if reason == 0 {
		return fmt.Errorf("datagram %v: native without a reason", t)
	}
	v, err := d.datagram(k)
	if errors.Is(err, ErrNoFlow) {
		v.Rule, err = ruleSlot(NoRule), nil
	}
	if err != nil {
		return err
	}
	v.State, v.Reason, v.Until, v.Epoch = dgramNative, reason, deadline(ttl), 0
	return d.putDatagram(k, v)
}

// DatagramIfindex returns the wire device of a tuple's entry, whether its datagrams are currently carried or native. It
// returns ErrNoFlow if there is no entry or it has no device.
func (d *Datapath) DatagramIfindex(t Tuple) (int, error) {
	k, err := t.key()
	if err != nil {
		return 0, err
	}
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	v, err := d.datagram(k)
	if err == nil && v.Ifindex == 0 {
		err = ErrNoFlow // closed before any datagram was seen
	}
	return int(v.Ifindex), err
}

// datagram reads an entry from whichever map has it.
func (d *Datapath) datagram(k smcgwFlowKey) (v smcgwDgram, err error) {
	for _, m := range d.datagramMaps() {
		err := m.Lookup(k, &v)
		if err == nil {
			return v, nil
		}
		if !errors.Is(err, bpf.ErrKeyNotExist) {
			return v, fmt.Errorf("datagram entry: %w", err)
		}
	}
	return v, ErrNoFlow
}

// datagramMaps returns the maps of entries in the order in which the programs search them.
func (d *Datapath) datagramMaps() []*bpf.Map {
	return []*bpf.Map{d.objs.Datagrams, d.objs.DatagramNatives}
}

// putDatagram writes an entry to the map in which native tuples cannot evict it.
func (d *Datapath) putDatagram(k smcgwFlowKey, v smcgwDgram) error {
	err := d.objs.Datagrams.Put(k, v)
	if err == nil {
		err = ignoreMissing(d.objs.DatagramNatives.Delete(k))
	}
	if err != nil {
		return fmt.Errorf("datagram entry: %w", err)
	}
	return nil
}

// deleteDatagram removes an entry, if there is one.
func (d *Datapath) deleteDatagram(k smcgwFlowKey) error {
	for _, m := range d.datagramMaps() {
		if err := ignoreMissing(m.Delete(k)); err != nil {
			return fmt.Errorf("datagram entry: %w", err)
		}
	}
	return nil
}

// ruleSlot is the inverse of ruleIndex.
func ruleSlot(rule int) uint8 {
	if rule < 0 || rule >= MaxRules {
		return noRuleSlot
	}
	return uint8(rule)
}

// noRuleSlot is NO_RULE of maps.h.
const noRuleSlot = 255

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
