package soft

import "github.com/smcgw/smcgw/verbs/soft/wire"

// Requests that come before the one that is expected are kept until their turn: a network that reorders packets then
// costs nothing. The NAK that asks for the missing one waits for a moment, since that may only be late:
//
//	in order ── gap ──► waiting ── gap filled ────────► in order, the kept ones first
//	                       └── in vain, no room ──► NAK, nothing is kept until the missing one comes
//
// With the NAK the kept ones are dropped, since the requester sends them again, too: to acknowledge them earlier hangs
// the kernel's rxe, see duplicate. So a loss costs what it would if nothing were kept.

// Limits of what is kept.
const (
	earlyPackets = 1024    // of a queue pair; divides the number of PSNs
	earlyPairs   = 64      // queue pairs of a vector
	earlyBytes   = 8 << 20 // of a vector
	earlySpare   = 256     // packets whose memory stays when nothing is kept
)

// A missing packet is taken for lost at the end of the turn, until one came after all although it had been asked for. From
// then on missing ones are waited for twice as long as that was late, within this limit, until so many in a row had been
// lost (RACK, RFC 8985, does the same with other figures).
const (
	longestPatience = 50 * millisecond
	forgetsAfter    = 16
)

// earlyPacket is a request that has passed all checks but is not the expected one.
type earlyPacket struct {
	header  wire.Header
	payload []byte
}

// earlyRing holds the packets of a queue pair by PSN.
type earlyRing [earlyPackets]*earlyPacket

// earlyPool is the memory of a vector for them.
type earlyPool struct {
	mtu    int
	made   int            // packets
	free   []*earlyPacket // those not in use
	rings  int            // made
	unused []*earlyRing
}

// early is what a queue pair keeps, and what it knows of the order of its packets.
type early struct {
	ring *earlyRing // nil: nothing is kept
	kept int

	gapFrom int64 // since when the expected packet is missing
	nakAt   int64 // time of the last NAK
	nakAge  int64 // how late the packet of nakPSN came after all; 0: not yet, or twice; -1: that will not tell anything
	nakPSN  uint32
	wait    int64 // how long to wait for a missing packet
	losses  int   // in a row
}

// ring returns an empty ring, or nil.
func (p *earlyPool) ring() (r *earlyRing) {
	switch n := len(p.unused); {
	case n > 0:
		r, p.unused = p.unused[n-1], p.unused[:n-1]
	case p.rings < earlyPairs:
		p.rings++
		r = new(earlyRing)
	}
	return r
}

// packet returns memory for a packet, or nil.
func (p *earlyPool) packet() *earlyPacket {
	if n := len(p.free); n > 0 {
		e := p.free[n-1]
		p.free = p.free[:n-1]
		return e
	}
	if (p.made+1)*p.mtu > earlyBytes {
		return nil
	}
	p.made++
	return &earlyPacket{payload: make([]byte, 0, p.mtu)}
}

// release takes an empty ring back.
func (p *earlyPool) release(r *earlyRing) {
	p.unused = append(p.unused, r)
	if len(p.unused) == p.rings && len(p.free) > earlySpare {
		clear(p.free[earlySpare:])
		p.free = p.free[:earlySpare]
		p.made = earlySpare
	}
}

// keep keeps a request that came too early, ahead packets before its turn, if there is room.
func (q *qp) keep(h *wire.Header, payload []byte, ahead int32) bool {
	r, p := &q.resp, &q.vec.early
	if ahead >= earlyPackets || len(payload) > q.mtu || q.guard.on && q.guard.port == 0 || r.nakked {
		return false
	}
	if r.early.ring == nil {
		if r.early.ring = p.ring(); r.early.ring == nil {
			return false
		}
	}
	at := &r.early.ring[h.PSN%earlyPackets]
	if *at == nil {
		if *at = p.packet(); *at == nil {
			q.closeEarly()
			return false
		}
		r.early.kept++
		q.vec.dev.count.early.Add(1)
	} else if (*at).header.PSN == h.PSN {
		return true
	}
	(*at).header, (*at).payload = *h, append((*at).payload[:0], payload...)
	return true
}

// takeEarly returns the kept packet with the expected PSN, or nil. The caller puts it back into the pool.
func (q *qp) takeEarly() *earlyPacket {
	r := &q.resp
	if r.early.kept == 0 {
		return nil
	}
	at := &r.early.ring[r.psn%earlyPackets]
	e := *at
	if e == nil || e.header.PSN != r.psn {
		return nil
	}
	*at = nil
	r.early.kept--
	return e
}

// forgetEarly drops what is kept.
func (q *qp) forgetEarly() {
	r, p := &q.resp, &q.vec.early
	for i := 0; r.early.kept > 0; i++ {
		if e := r.early.ring[i]; e != nil {
			p.free = append(p.free, e)
			r.early.ring[i] = nil
			r.early.kept--
		}
	}
	q.closeEarly()
}

// closeEarly gives the ring back if nothing is kept.
func (q *qp) closeEarly() {
	if r := &q.resp; r.early.ring != nil && r.early.kept == 0 {
		q.vec.early.release(r.early.ring)
		r.early.ring = nil
	}
}

// outOfOrder keeps a request that is ahead packets early, and sees to it that the expected one is asked for, once each
// time the requester has gone back, which shows as PSNs that do not increase.
func (q *qp) outOfOrder(h *wire.Header, payload []byte, ahead int32) {
	r, now := &q.resp, q.vec.now
	kept := q.keep(h, payload, ahead)
	switch {
	case r.nakked && wire.PSNDiff(h.PSN, r.seen) > 0:
		r.seen = h.PSN
		return
	case r.nakked && now-r.early.nakAt < r.early.wait:
		return // late, not repeated
	case r.gapAt == 0:
		r.seen, r.early.gapFrom = h.PSN, now
	case wire.PSNDiff(h.PSN, r.seen) > 0:
		r.seen = h.PSN
	}
	switch {
	case !kept:
		q.askAgain()
	case r.gapAt == 0:
		r.gapAt = now + r.early.wait
		q.setDeadline()
	}
}

// askAgain sends a NAK of the expected packet.
func (q *qp) askAgain() {
	r := &q.resp
	e := &r.early
	if e.nakAge != 0 { // the packet of the last NAK came only once: it had been lost
		if e.losses++; e.losses >= forgetsAfter {
			e.wait = 0
		}
	}
	if e.nakAge = 0; r.nakked && e.nakPSN == r.psn {
		e.nakAge = -1 // it may come twice because it was asked for twice
	}
	e.nakAt, e.nakPSN = q.vec.now, r.psn
	r.nakked, r.gapAt = true, 0
	q.forgetEarly()
	q.vec.dev.count.sentNAKs.Add(1)
	q.reply(wire.NAKSequence)
}

// inOrder is called when the expected packet, with that PSN, was executed after others had come. nakked says that it had
// been asked for.
func (q *qp) inOrder(psn uint32, nakked bool) {
	r := &q.resp
	e := &r.early
	if nakked && psn == e.nakPSN && e.nakAge == 0 {
		e.nakAge = max(1, q.vec.now-e.gapFrom)
	}
	r.gapAt = 0
	for !r.dying {
		p := q.takeEarly()
		if p == nil {
			break
		}
		if q.guard.on && q.violates(&p.header, p.payload) {
			q.suspect()
		} else {
			q.execute(&p.header, p.payload)
		}
		q.vec.early.free = append(q.vec.early.free, p)
		if r.psn == p.header.PSN {
			break // refused, or no receive
		}
	}
	if e.kept == 0 || r.nakked {
		q.forgetEarly()
		return
	}
	e.gapFrom = q.vec.now
	r.gapAt = e.gapFrom + e.wait
	q.setDeadline()
}

// cameTwice is called for a repeated request. If it is the one that the last NAK asked for, that had only been late. If
// so much time has passed that the requester's timer may have expired, that proves nothing.
func (q *qp) cameTwice(psn uint32) {
	e, now := &q.resp.early, q.vec.now
	if e.nakAge > 0 && psn == e.nakPSN && now-e.nakAt < max(minRTO, q.req.rtt.srtt, q.path.rtt.srtt) {
		e.wait = min(max(e.wait, 2*e.nakAge), longestPatience)
		e.nakAge, e.losses = 0, 0
	}
}
