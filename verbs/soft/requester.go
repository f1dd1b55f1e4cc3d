package soft

import (
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// requester is the sending side of a connected queue pair. PSNs of packets:
//
//	acknowledged │ in flight │ sent before, to be sent again │ new
//	             una         next (at idx, k)                high
//
// Going back moves next to an earlier PSN (go-back-N); nothing is ever sent beyond the congestion window, which starts
// at una.
type requester struct {
	una  uint32 // oldest PSN not acknowledged
	high uint32 // first PSN never sent
	idx  uint64 // work request that contains next
	k    uint32 // index of next in that work request
	cc   congestion
	rtt  roundTrip

	again      uint64   // packets sent again
	judged     tally    // state when futile last judged
	reads      []uint32 // last PSN of each READ and atomic in flight, oldest first
	cuts       []uint32 // last PSN of every READ request sent from una on, in order
	recover    uint32   // the window was already reduced for losses before this PSN
	timing     bool     // timedPSN was sent once, at timedAt
	timedPSN   uint32
	timedAt    int64
	rtoAt      int64 // retransmission timer, 0 = nothing in flight
	rnrAt      int64 // the peer has no receive: wait until then
	paceAt     int64 // pacing: send again at this time
	paceFrom   int64 // pacing: tokens were counted up to this time
	tokens     float64
	progressAt int64 // last progress of the peer
	lostPSN    uint32
	lostAt     int64
	timeouts   int // in a row
	tries      int // number of times gone back since progressAt
	rnrs       int // in a row
	limited    bool
	doubt      doubt
	before     snapshot // state before the first timeout since an answer, unless sure
	sent       uint32   // end of what was sent since that timeout
}

func (r *requester) init(psn uint32, mtu int, idx uint64) {
	*r = requester{una: psn, high: psn, recover: psn, idx: idx, reads: r.reads[:0], cuts: r.cuts[:0]}
	r.cc.init(mtu)
}

// next returns the PSN to send next.
func (q *qp) next() uint32 {
	r := &q.req
	if r.idx == q.sq.Posted() {
		return r.high
	}
	w := q.sq.Slot(r.idx)
	if !w.begun {
		return r.high
	}
	return wire.PSNAdd(w.first, int(r.k))
}

// transmit sends what the queue pair may send now.
func (q *qp) transmit() {
	if len(q.resp.jobs) > 0 || q.resp.dying {
		q.respond()
	}
	if q.narrow {
		q.narrow = false
		if q.state == verbs.QPSRTS && !q.sq.Idle() {
			q.failOldest(verbs.WCRetryExcErr)
		}
	}
	switch q.state {
	case verbs.QPSRTS:
	case verbs.QPSErr:
		q.flushSends()
		q.flushReceives()
		return
	case verbs.QPSSQE:
		q.flushSends()
		return
	default:
		return
	}
	switch q.kind {
	case verbs.QPTRC:
		q.transmitRC()
	case verbs.QPTUC:
		q.transmitUC()
	default:
		q.transmitUD()
	}
}

func (q *qp) transmitRC() {
	r := &q.req
	if r.rnrAt != 0 {
		return
	}
	r.limited = false
	for budget := max(turnPackets, turnBytes/q.mtu); ; {
		if budget <= 0 {
			q.vec.schedule(q)
			break
		}
		n := q.step(budget)
		if n == 0 {
			break
		}
		budget -= n
	}
	q.setDeadline()
}

// step sends the next packet, or a run of at most budget packets, and returns how many PSNs that takes; 0 means that
// nothing can be sent now. A step that only begins a work request counts as one.
func (q *qp) step(budget int) int {
	r, v := &q.req, q.vec
	if r.idx == q.sq.Posted() {
		return 0
	}
	w := q.sq.Slot(r.idx)
	if !w.begun && !q.begin(w) {
		return 0
	}
	if w.packets == 0 { // a local operation
		r.idx++
		q.collect()
		return 1
	}
	psn := wire.PSNAdd(w.first, int(r.k))
	flight := int(wire.PSNDiff(psn, r.una))
	room := r.cc.packets() - flight
	switch r.doubt {
	case probing:
		room = 1 - flight
	case trying:
		room = newPackets - int(wire.PSNDiff(psn, r.recover))
	}
	if room <= 0 {
		r.limited = true
		return 0
	}
	if w.answered() && len(r.reads) >= max(1, int(q.attr.MaxRDAtomic)) {
		return 0
	}
	if r.una == r.high {
		q.wakeUp()
	}
	if !q.pace() {
		return 0
	}
	n := q.burst(w, psn, budget, room)
	if n == 0 {
		n = q.emit(w, psn, uint32(room))
	}
	if n == 0 {
		return 0
	}
	r.tokens -= float64(n * q.mtu)
	if again := int(wire.PSNDiff(r.high, psn)); again > 0 {
		packets := n
		if w.answered() { // one request
			packets = 1
		}
		r.again += uint64(min(again, packets))
		v.dev.count.retransmits.Add(uint64(min(again, packets)))
	}
	if r.k += uint32(n); r.k == w.packets {
		r.idx, r.k = r.idx+1, 0
	}
	end := wire.PSNAdd(psn, n)
	if r.doubt != trying && wire.PSNDiff(end, r.sent) > 0 {
		r.sent = end
	}
	if wire.PSNDiff(end, r.high) > 0 {
		if r.high = end; !r.timing {
			r.timing, r.timedPSN, r.timedAt = true, wire.PSNAdd(end, -1), v.now
		}
	}
	if r.rtoAt == 0 {
		r.rtoAt = v.now + r.rtt.timer(q.ackTimeout())
	}
	return n
}

// wakeUp is called before sending when everything has been acknowledged.
func (q *qp) wakeUp() {
	r, now := &q.req, q.vec.now
	if r.progressAt != 0 && now-r.progressAt > idleReset {
		r.cc.idle()
	}
	r.progressAt = now
}

// idleReset is how long a queue pair may be silent and still keep its window.
const idleReset = 1000 * millisecond

// begin assigns PSNs to a work request; it returns false if the request has to wait.
func (q *qp) begin(w *sendWQE) bool {
	r := &q.req
	switch {
	case w.status != verbs.WCSuccess:
		return false
	case w.flags&verbs.SendFence != 0 && len(r.reads) > 0:
		return false
	case w.op == verbs.WRLocalInv:
		if !q.pd.invalidate(w.imm, false) {
			q.cannot(w, verbs.WCLocQPOpErr)
			return false
		}
		w.packets = 0
	case w.answered() && w.op != verbs.WRRDMARead:
		w.packets = 1
	default:
		w.packets = packetsOf(w.length, q.mtu)
	}
	w.begun, w.first, w.got = true, r.high, 0
	w.apart = w.op == verbs.WRRDMAWrite && q.kind == verbs.QPTRC && w.packets > 1 && w.packets <= apartPackets
	return true
}

// apartPackets is the largest number of packets of a WRITE that is sent as that many separate WRITEs, which the peer
// cannot distinguish from one. FIRST has a RETH and MIDDLE has none, so a train would end after FIRST and every message
// would take two more trains; packets with a RETH each have one size, and trains continue across messages. In a longer
// WRITE, the extra trains cost less than 16 more bytes in every packet.
const apartPackets = 32

// packetsOf returns how many packets a message takes; an empty one takes one.
func packetsOf(length uint32, mtu int) uint32 {
	return max(1, (length+uint32(mtu)-1)/uint32(mtu))
}

// cannot marks a work request as failed; it completes with the error after the earlier ones have completed.
func (q *qp) cannot(w *sendWQE, status verbs.WCStatus) {
	w.status = status
	q.collect()
}

// emit sends the packet at PSN psn of w. room is what the window leaves; a new READ asks for no more than that, so that
// its responses obey our window.
func (q *qp) emit(w *sendWQE, psn, room uint32) int {
	h := q.header(psn)
	h.AckReq = true
	off := q.req.k * uint32(q.mtu)
	switch w.op {
	case verbs.WRRDMARead:
		n := q.cut(psn, min(w.packets-q.req.k, room))
		h.Opcode, h.VA, h.RKey = wire.RCReadRequest, w.addr+uint64(off), w.rkey
		h.Length = min(w.length-off, n*uint32(q.mtu))
		q.req.reads = append(q.req.reads, wire.PSNAdd(psn, int(n)-1))
		q.vec.tx.add(q.path, &h, nil, 0)
		return int(n)
	case verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd:
		h.Opcode, h.VA, h.RKey, h.SwapAdd = wire.RCFetchAdd, w.addr, w.rkey, w.operand[0]
		if w.op == verbs.WRAtomicCmpAndSwp {
			h.Opcode, h.Compare, h.SwapAdd = wire.RCCompareSwap, w.operand[0], w.operand[1]
		}
		q.req.reads = append(q.req.reads, psn)
		q.vec.tx.add(q.path, &h, nil, 0)
		return 1
	default:
	}
	n := min(w.length-off, uint32(q.mtu))
	if !q.gather(w, off, n) {
		q.cannot(w, verbs.WCLocProtErr)
		return 0
	}
	q.message(w, &h)
	if w.apart {
		h.Opcode, h.VA, h.RKey, h.Length = wire.RCWriteOnly, w.addr+uint64(off), w.rkey, n
	}
	h.AckReq = room == 1 || psn%q.req.ackEvery() == 0 || q.req.k == w.packets-1 && !q.more()
	q.vec.tx.put(q.path, &h, q.vec.parts, int(n), q.req.wasSent(psn))
	return 1
}

// wasSent reports whether the packet at psn was sent before. A program may change its memory at any time, also between the
// computation of the ICRC and sendmsg; peers then ignore the packet. So that this costs time only, a repetition is a copy.
func (r *requester) wasSent(psn uint32) bool { return wire.PSNDiff(r.high, psn) > 0 }

// cut returns how many packets a READ request at psn asks for: n if none was sent for it before. A repeated request
// always extends to the end of the original request, whatever the window is now. Responders answer a repeated READ only
// within the request that they executed, and the kernel's (rxe_resp, duplicate_request) forgets with each repetition
// what came before its beginning. So repetitions must not be split: a piece lost after a later piece was requested
// would be refused forever.
func (q *qp) cut(psn, n uint32) uint32 {
	r := &q.req
	for _, end := range r.cuts {
		if d := wire.PSNDiff(end, psn); d >= 0 {
			return uint32(d) + 1
		}
	}
	r.cuts = append(r.cuts, wire.PSNAdd(psn, int(n)-1))
	return n
}

// ackEvery returns how often to ask for an acknowledgement within a long message: several times per window, but no more
// often than is useful.
func (r *requester) ackEvery() uint32 {
	if r.cc.packets() >= 1024 {
		return 128
	}
	return 32
}

// message sets the opcode of the packet at req.k of a SEND or WRITE, and the fields that go with it.
func (q *qp) message(w *sendWQE, h *wire.Header) {
	first, last := q.req.k == 0, q.req.k == w.packets-1
	send := w.op == verbs.WRSend || w.op == verbs.WRSendWithImm || w.op == verbs.WRSendWithInv
	switch {
	case send && first && !last:
		h.Opcode = wire.RCSendFirst
	case send && !last:
		h.Opcode = wire.RCSendMiddle
	case first && !last:
		h.Opcode = wire.RCWriteFirst
	case !last:
		h.Opcode = wire.RCWriteMiddle
	default:
		h.Opcode = lastOpcode(w.op, first)
		h.Imm, h.InvRKey = w.imm, w.imm
	}
	if first && !send {
		h.VA, h.RKey, h.Length = w.addr, w.rkey, w.length
	}
	if q.kind == verbs.QPTUC {
		h.Opcode |= wire.UCSendFirst
	}
}

// lastOpcode returns the RC opcode of the last, or only, packet of a message.
func lastOpcode(op verbs.WROpcode, only bool) wire.Opcode {
	switch op {
	case verbs.WRSendWithImm:
		return pick(only, wire.RCSendOnlyImm, wire.RCSendLastImm)
	case verbs.WRSendWithInv:
		return pick(only, wire.RCSendOnlyInv, wire.RCSendLastInv)
	case verbs.WRRDMAWrite:
		return pick(only, wire.RCWriteOnly, wire.RCWriteLast)
	case verbs.WRRDMAWriteWithImm:
		return pick(only, wire.RCWriteOnlyImm, wire.RCWriteLastImm)
	default:
		return pick(only, wire.RCSendOnly, wire.RCSendLast)
	}
}

func pick(only bool, a, b wire.Opcode) wire.Opcode {
	if only {
		return a
	}
	return b
}

// pace spreads the window over the round trip if that is longer than the granularity of the loop's clock; otherwise the
// window alone is fine enough. It reports whether to send now.
func (q *qp) pace() bool {
	r, now := &q.req, q.vec.now
	if r.rtt.srtt < paceFromRTT {
		r.tokens, r.paceFrom = 0, now
		return true
	}
	gain := 1.25
	if r.cc.window < r.cc.threshold {
		gain = 2
	}
	rate := gain * r.cc.window / float64(r.rtt.srtt)
	burst := max(initialWindow, rate*2*millisecond)
	r.tokens = min(burst, r.tokens+rate*float64(now-r.paceFrom))
	r.paceFrom = now
	if r.tokens > 0 {
		return true
	}
	r.paceAt = now + max(millisecond, int64(-r.tokens/rate))
	return false
}

// paceFromRTT is the round trip time from which sending is paced.
const paceFromRTT = 4 * millisecond
