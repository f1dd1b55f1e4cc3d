package rsocket

import "github.com/smcgw/smcgw/rmb"

// recvSide is our receive ring and the peer's grants of it.
type recvSide struct {
	ring rmb.Ring
	addr uint64 // address of the ring, as the peer knows it
	key  uint32
	next *nextRing // nil: no ring exchange is in progress
	// spent reports that the peer has filled everything it was granted.
	spent bool
	// retired reports that the old ring of an exchange is free and not reported yet.
	retired bool
	// early asks for credits to be returned before half of them are used.
	early bool

	messages    uint64 // data messages received
	consumed    uint64 // messages consumed entirely (rseq_no)
	limit       uint64 // messages allowed in total
	returned    uint64 // value of consumed when credits were last returned
	ends        endsLog
	granted     uint64     // bytes granted in total
	grantNext   rmb.Cursor // where the next grant begins
	unit        int        // smallest grant, except at the end of the ring
	slot, slots uint32     // of the peer's target list: the next entry to write, and the number of entries
	parts       uint8      // number of grants that a ring is divided into
	maxPending  uint8

	// pending holds the absolute ends of the grants that the peer has not filled yet, oldest first, at most maxPending. An
	// entry of the peer's list may be rewritten when all bytes that it last granted have been received.
	pending fifo[uint64]
}

func (d *recvSide) init(cfg *Config) {
	d.ring, d.addr, d.key = rmb.NewRing(cfg.Ring), cfg.RingAddr, cfg.RingKey
	d.ends = newEndsLog(cfg.Credits)
	d.limit = uint64(cfg.Credits)
}

// connect sets the grant size by the length of the peer's list: eighths of the ring if they fit, halves for stock
// peers, whose two entries would otherwise cover less than the ring.
func (d *recvSide) connect(set *settings, peer ConnData) {
	d.parts = uint8(max(StockTargets, min(peer.TargetSGL.Length, grantParts)))
	d.unit = max(1, d.ring.Size()/int(d.parts))
	d.slots = min(peer.TargetSGL.Length, 1<<30)
	d.maxPending = uint8(min(d.slots, MaxTargets))
	d.slot = 1 % d.slots
	d.grant(set.firstGrant(d.ring.Size()), d.ring.Size())
}

// grant records a grant of n bytes in a ring of size bytes.
func (d *recvSide) grant(n, size int) {
	d.granted += uint64(n)
	d.grantNext = d.grantNext.Add(uint32(size), uint32(n))
	d.pending.push(d.granted)
}

// ReadSpan returns the next received bytes as far as they are contiguous, or nothing. The stream owns the memory, which
// does not change until it is consumed.
func (s *Stream) ReadSpan() []byte { return s.recv.ring.ReadSpan() }

// Consume frees the n oldest bytes; more than were received is [rmb.ErrUnderrun]. Credits and grants may be due
// afterwards: see [Stream.NextControl].
func (s *Stream) Consume(n int) error {
	d := &s.recv
	if err := d.ring.Consume(n); err != nil {
		return err
	}
	d.countConsumed()
	d.promote()
	return nil
}

// countConsumed counts the messages that have been consumed entirely.
func (d *recvSide) countConsumed() {
	for d.consumed < d.messages && d.ends.after(d.consumed, d.ring.Consumed()) <= 0 {
		d.consumed++
	}
}

// Receive handles one receive completion with its immediate and byte count. An error is a [*ProtocolError], which has
// failed the stream, the error that failed it before, or [ErrState] before Connect.
func (s *Stream) Receive(imm Imm, length uint32) (Events, error) {
	if s.deaf {
		return 0, s.err
	}
	if !s.connected {
		return 0, ErrState
	}
	if imm.Op() == OpProbe {
		return s.receiveProbe(imm, length)
	}
	s.quiet, s.heard = false, true
	switch imm.Op() {
	case OpData:
		return s.receiveData(imm, length)
	case OpSGL:
		return 0, s.handleSGL(imm, length)
	case OpCtrl:
		return s.receiveControl(imm, length)
	case OpIomapSGL:
		return s.receiveIOMap(imm, length)
	default:
		return 0, s.violation(ViolationImmediate, imm, length)
	}
}

func (s *Stream) receiveData(imm Imm, length uint32) (Events, error) {
	d := &s.recv
	n := imm.Data()
	switch {
	case s.peerShut:
		return 0, s.violation(ViolationShutdown, imm, length)
	case n == 0 || n != length:
		return 0, s.violation(ViolationLength, imm, length)
	case d.messages == d.limit:
		return 0, s.violation(ViolationCredit, imm, length)
	case d.pending.len == 0 || uint64(n) > *d.pending.oldest()-d.filling().Produced():
		return 0, s.violation(ViolationData, imm, length)
	}
	if err := d.filling().Produce(int(n)); err != nil {
		return 0, s.violation(ViolationData, imm, length)
	}
	d.ends.put(d.messages, d.filling().Produced())
	d.messages++
	d.early = false
	if *d.pending.oldest() == d.filling().Produced() {
		d.pending.drop()
		d.spent = d.spent || d.pending.len == 0
	}
	return EventReadable, nil
}

// starvedGrant is enough for a peer that has no room left. The peer's application is blocked until it gets a grant, and
// a larger one would have to wait longer for our application to make room.
const starvedGrant = 64 << 10

// grantUnit returns the size of the smallest grant to send now: the unit, or a fraction of it if the peer has filled
// everything it was granted.
func (d *recvSide) grantUnit() int {
	unit := d.unit
	for d.pending.len == 0 && unit > starvedGrant {
		unit /= 2
	}
	return unit
}

// grantable returns the size of the grant to send now, or 0. Except at the ring's end, grants are multiples of the
// unit, so that they stay aligned. A grant covers all that was consumed in one go, so that bulk data flows in large
// pieces and small messages do not cause a grant each.
func (d *recvSide) grantable() int {
	if d.next != nil {
		if d.next.announced || d.granting() {
			return 0
		}
		return d.next.ring.Size()
	}
	free := d.ring.Size() - int(d.granted-d.ring.Consumed())
	toEnd := d.ring.Size() - int(d.grantNext.Count)
	unit := d.grantUnit()
	if d.granting() || free < min(unit, toEnd) {
		return 0
	}
	if free >= toEnd {
		return toEnd
	}
	return free - free%unit
}

// granting reports that the peer's list has no free entry.
func (d *recvSide) granting() bool { return d.pending.len >= uint32(d.maxPending) }

// creditsDue reports whether half of the credits have been used up and consumed since they were last returned.
func (d *recvSide) creditsDue(credits int) bool { return d.consumed-d.returned >= uint64(credits/2) }
