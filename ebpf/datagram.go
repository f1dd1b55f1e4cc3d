package ebpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	bpf "github.com/cilium/ebpf"
)

// DatagramPeer is what the gateway knows about the datagrams of a peer.
type DatagramPeer struct {
	// Addr and Port name the peer; port 0 is the whole address. What is said of
	// a port goes before what is said of its address.
	Addr netip.Addr
	Port uint16
	// Capable: its gateway takes datagrams from ours.
	Capable bool
	// Reason is why datagrams to it stay native, where it is not capable.
	Reason uint8
	// TTL is how long that holds; 0 is until it is replaced or forgotten.
	TTL time.Duration
}

// States of a datagram entry, enum dgram_state of maps.h.
const (
	dgramNative = iota + 1
	dgramSelected
	dgramOpen
)

// SetDatagramPeer makes a peer known. It holds from the next datagram on, for
// new tuples and for old ones.
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

// ForgetDatagramPeer makes a peer unknown, if it is known.
func (d *Datapath) ForgetDatagramPeer(addr netip.Addr, port uint16) error {
	return d.forget(func(o *objects) *bpf.Map { return o.DatagramPeers }, "datagram peer", addr, port)
}

// deadline is a time from now on the programs' clock; 0 is never.
func deadline(ttl time.Duration) uint64 {
	if ttl <= 0 {
		return 0
	}
	return Now() + uint64(ttl)
}

// OpenDatagram is for the tuple of a datagram that a peer gateway sent: what is
// written to A for it arrives on the device ifindex, and what the local
// application answers is carried, whatever the policy says of answers, unless
// the peer is known as not capable. rule is what [Datapath.Decide] named.
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

// CloseDatagram ends the carrying of a tuple's datagrams, whichever side began
// it: they are native for reason and ttl, then decided again. Without a ttl the
// entry is deleted; nothing can then be written to A for the tuple.
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

// DatagramIfindex returns the wire device of a tuple's entry, whether its
// datagrams are carried or native now, or ErrNoFlow.
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

// datagram reads an entry from the map that has it.
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

// datagramMaps are the maps of entries in the order the programs look.
func (d *Datapath) datagramMaps() []*bpf.Map {
	return []*bpf.Map{d.objs.Datagrams, d.objs.DatagramNatives}
}

// putDatagram writes an entry where native tuples cannot evict it.
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

// deleteDatagram removes an entry, if it is there.
func (d *Datapath) deleteDatagram(k smcgwFlowKey) error {
	for _, m := range d.datagramMaps() {
		if err := ignoreMissing(m.Delete(k)); err != nil {
			return fmt.Errorf("datagram entry: %w", err)
		}
	}
	return nil
}

// ruleSlot is the reverse of ruleIndex.
func ruleSlot(rule int) uint8 {
	if rule < 0 || rule >= MaxRules {
		return noRuleSlot
	}
	return uint8(rule)
}

// noRuleSlot is NO_RULE of maps.h.
const noRuleSlot = 255
