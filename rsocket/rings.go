package rsocket

import (
	"fmt"

	"github.com/smcgw/smcgw/rmb"
)

// A receive ring can be exchanged for a larger or smaller one without a pause. If both ends said so in their connection
// data, a grant that does not continue the ring is the whole of a new one. Grants are filled in order, so the first
// byte of the new ring follows the last byte granted of the old ring.
//
//	one ring ── SwitchRing ──► announced or not yet ── the last byte granted of the old ring
//	   ▲                                               is consumed ──┐
//	   └─────────────────── the old ring is retired ◄────────────────┘
//
// The old ring is retired when everything that was ever granted of it has been received and consumed: the peer has no
// grant of it any more.

// nextRing is the ring that follows the current one.
type nextRing struct {
	announced bool
	ring      rmb.Ring
	addr      uint64
	key       uint32
	at        uint64 // absolute offset of its first byte
}

// formerRing is a ring of the peer that an exchange has replaced.
type formerRing struct {
	ring SGE
	at   uint64 // bytes granted before it
}

// CanSwitchRing reports whether [Stream.SwitchRing] may be called: the peer supports it, and no exchange is in
// progress.
func (s *Stream) CanSwitchRing() bool {
	return s.set.rings && s.peer.rings && s.live() && s.recv.next == nil
}

// SwitchRing grants buf, which the peer knows by addr and key, after everything granted of the present ring. A grant is
// due afterwards: see [Stream.NextControl]. [Stream.RingRetired] reports when the present ring is free. The error is
// [ErrState] without [Stream.CanSwitchRing], and [ErrConfig] for a ring of fewer than 2 bytes or more than [MaxRing].
func (s *Stream) SwitchRing(buf []byte, addr uint64, key uint32) error {
	d := &s.recv
	if !s.CanSwitchRing() {
		return ErrState
	}
	if len(buf) < 2 || len(buf) > MaxRing {
		return fmt.Errorf("ring of %d bytes: %w", len(buf), ErrConfig)
	}
	d.next = &nextRing{ring: rmb.NewRingAt(buf, d.granted), addr: addr, key: key, at: d.granted}
	return nil
}

// RingRetired reports, once, that neither side uses the old ring of the last exchange any more.
func (s *Stream) RingRetired() bool {
	retired := s.recv.retired
	s.recv.retired = false
	return retired
}

// GrantsSpent reports whether, since the last call, the peer has filled everything it was granted and so may have
// waited.
func (s *Stream) GrantsSpent() bool {
	spent := s.recv.spent
	s.recv.spent = false
	return spent
}

// RingSize returns the size of the ring that is granted from.
func (s *Stream) RingSize() int {
	if s.recv.next != nil {
		return s.recv.next.ring.Size()
	}
	return s.recv.ring.Size()
}

// promote makes the next ring the current one once the current one is consumed.
func (d *recvSide) promote() {
	if d.next == nil || !d.next.announced || d.ring.Consumed() != d.next.at {
		return
	}
	d.ring, d.addr, d.key = d.next.ring, d.next.addr, d.next.key
	d.next = nil
	d.retired = true
}

// grantNextRing returns the grant that announces the next ring.
func (d *recvSide) grantNextRing() SGE {
	r := d.next
	r.announced = true
	n := r.ring.Size()
	d.grantNext = rmb.Cursor{}
	d.unit = max(1, n/int(d.parts))
	g := SGE{Addr: r.addr, Key: r.key, Length: uint32(n)}
	d.grant(n, n)
	d.promote()
	return g
}

// filling returns the ring that the next bytes arrive in.
func (d *recvSide) filling() *rmb.Ring {
	if d.next != nil && d.ring.Produced() == d.next.at {
		return &d.next.ring
	}
	return &d.ring
}

// otherRing accepts a grant that begins another ring. It must not overlap the present ring, and all grants of the ring
// before the present one must have been used.
func (d *sendSide) otherRing(g SGE) bool {
	if d.sent < d.ringAt || g.Length > MaxRing || g.Key == d.ring.Key &&
		g.Addr < d.ring.Addr+uint64(d.ring.Length) && d.ring.Addr < g.Addr+uint64(g.Length) {
		return false
	}
	d.before = &formerRing{ring: d.ring, at: d.ringAt}
	d.ring, d.ringNext, d.ringAt = g, rmb.Cursor{}, d.granted
	return true
}

// placement returns where in the peer's memory the byte at an absolute offset was placed, and how many bytes from there
// on are contiguous. The offset must be of a byte, sent between gateways, that the peer may not have consumed. Such a
// byte is in one of the last two rings, since an exchange begins only when the one before has ended.
func (d *sendSide) placement(offset uint64) (addr uint64, key uint32, n int) {
	ring, at, end := d.ring, d.ringAt, d.sent
	if offset < d.ringAt {
		ring, at, end = d.before.ring, d.before.at, min(d.ringAt, d.sent)
	}
	if ring.Length == 0 || offset < at || offset >= end {
		return 0, 0, 0
	}
	pos := (offset - at) % uint64(ring.Length)
	return ring.Addr + pos, ring.Key, int(min(end-offset, uint64(ring.Length)-pos))
}
