package soft

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// response handles an answer of the peer: what it acknowledges, and what it asks for (IBTA vol. 1, 9.7.5.1; rxe_comp).
// An answer to a PSN that was never sent, or that was acknowledged before, is ignored.
func (q *qp) response(h *wire.Header, payload []byte, from uint16) {
	r := &q.req
	if wire.PSNDiff(h.PSN, r.high) >= 0 {
		q.vec.dev.count.dropUnexpected.Add(1)
		return
	}
	if wire.PSNDiff(h.PSN, r.una) < 0 {
		return
	}
	q.guard.learn(from)
	switch s := h.Syndrome; {
	case h.Opcode == wire.RCAtomicAcknowledge && s.IsACK():
		q.atomicAck(h)
	case h.Opcode != wire.RCAcknowledge && h.Opcode != wire.RCAtomicAcknowledge:
		q.readResponse(h, payload)
	case s.IsACK():
		q.ackTo(h.PSN)
	case s.IsRNR():
		q.ackTo(wire.PSNAdd(h.PSN, -1))
		q.rnr(r.una, s.RNRTimer()) // not h.PSN: a READ before it may lack its responses
	case s == wire.NAKSequence:
		q.vec.dev.count.sequenceNAKs.Add(1)
		q.ackTo(wire.PSNAdd(h.PSN, -1))
		q.lost(r.una)
	case s.IsNAK():
		q.ackTo(wire.PSNAdd(h.PSN, -1))
		q.refused(h.PSN, s)
	}
	if q.state != verbs.QPSErr {
		q.vec.schedule(q) // there may be room now; transmit also sets the timers
	}
}

// ackTo acknowledges everything up to psn. Only responses complete READs and atomics: an acknowledgement beyond them
// means that their responses were lost.
func (q *qp) ackTo(psn uint32) {
	end := wire.PSNAdd(psn, 1)
	if wire.PSNDiff(end, q.req.una) <= 0 {
		return
	}
	for i := q.sq.Done; i != q.sq.Posted(); i++ {
		w := q.sq.Slot(i)
		if !w.begun || wire.PSNDiff(w.first, psn) > 0 {
			break
		}
		if want := wire.PSNAdd(w.first, int(w.got)); w.answered() && w.got < w.packets && wire.PSNDiff(want, psn) <= 0 {
			q.advance(want)
			q.lost(want)
			return
		}
	}
	q.advance(end)
}

// advance moves una, and completes the work requests before it.
func (q *qp) advance(una uint32) {
	r := &q.req
	n := wire.PSNDiff(una, r.una)
	if n <= 0 {
		return
	}
	at := q.next()
	next := at
	if r.doubt != sure {
		if next = q.judge(una, at); r.doubt == doubtful {
			r.rtt.backoff = 0 // the packet was really lost, so the timer fits
		}
	}
	r.una = una
	if wire.PSNDiff(una, r.recover) > 0 {
		r.recover = una // PSNDiff compares with recover: it must not fall behind by half of the PSN space
	}
	if r.timing && wire.PSNDiff(una, r.timedPSN) > 0 {
		r.timing = false
		r.rtt.sample(q.vec.now - r.timedAt)
		r.rtt.backoff = 0 // only packets sent once tell that the timer fits (RFC 6298 5.7)
		q.path.rtt = roundTrip{srtt: r.rtt.srtt, rttvar: r.rtt.rttvar}
	}
	r.cc.acked(int(n), r.limited)
	r.progressAt, r.timeouts, r.tries, r.rnrs = q.vec.now, 0, 0, 0
	done := 0
	for done < len(r.reads) && wire.PSNDiff(r.reads[done], una) < 0 {
		done++
	}
	r.reads = append(r.reads[:0], r.reads[done:]...)
	for done = 0; done < len(r.cuts) && wire.PSNDiff(r.cuts[done], una) < 0; {
		done++
	}
	r.cuts = append(r.cuts[:0], r.cuts[done:]...)
	if wire.PSNDiff(next, una) < 0 { // packets to be sent again have arrived after all
		next = una
	}
	if next != at {
		q.goBack(next)
	}
	r.rtoAt = 0
	if next != una {
		r.rtoAt = q.vec.now + r.rtt.timer(q.ackTimeout())
	}
	q.collect()
}

// collect completes finished work requests at the head of the send queue.
func (q *qp) collect() {
	for !q.sq.Idle() {
		w := q.sq.Oldest()
		switch {
		case w.status != verbs.WCSuccess:
			q.failOldest(w.status)
			return
		case !w.begun || w.packets == 0 && q.req.idx <= q.sq.Done:
			return
		case w.packets > 0 && wire.PSNDiff(wire.PSNAdd(w.first, int(w.packets)), q.req.una) > 0:
			return
		}
		q.finish(verbs.WCSuccess)
	}
}

// lost reacts to a gap at psn, once per transmission of that packet.
func (q *qp) lost(psn uint32) {
	r, now := &q.req, q.vec.now
	if q.state == verbs.QPSErr || wire.PSNDiff(psn, r.una) < 0 {
		return
	}
	if r.lostPSN == psn && r.lostAt != 0 && now-r.lostAt < r.rtt.srtt*3/4 {
		return
	}
	if q.givesUp() {
		return
	}
	r.tries++
	if r.doubt == trying {
		r.rtt.backoff = 0 // it was really lost
	}
	r.doubt = sure
	r.lostPSN, r.lostAt = psn, now
	again := wire.PSNDiff(psn, r.recover) < 0
	r.cc.lost(again)
	if !again {
		r.recover = r.high
	}
	q.goBack(psn)
}

// rnr waits as long as the peer asks: it has no receive for the message at psn. The network is not at fault, but a
// waiting queue pair has nothing in flight to justify a large window.
func (q *qp) rnr(psn uint32, timer uint8) {
	r := &q.req
	if q.state == verbs.QPSErr || r.rnrAt != 0 {
		return
	}
	q.vec.dev.count.rnrNAKs.Add(1)
	r.rnrs++
	if q.attr.RNRRetry != 7 && r.rnrs > int(q.attr.RNRRetry) {
		q.failOldest(verbs.WCRNRRetryExcErr)
		return
	}
	r.doubt = sure
	r.cc.idle()
	q.goBack(psn)
	r.rtoAt = 0
	r.progressAt = q.vec.now
	r.rnrAt = q.vec.now + int64(verbs.RNRTimer(timer))
	q.setDeadline()
}

// refused ends the queue pair: the peer has refused the request at psn.
func (q *qp) refused(psn uint32, s wire.Syndrome) {
	if q.state == verbs.QPSErr || psn != q.req.una {
		return // an earlier READ must be answered first
	}
	switch s {
	case wire.NAKInvalidRequest:
		q.failOldest(verbs.WCRemInvReqErr)
	case wire.NAKRemoteAccess:
		q.failOldest(verbs.WCRemAccessErr)
	case wire.NAKRemoteOperational:
		q.failOldest(verbs.WCRemOpErr)
	default:
		q.failOldest(verbs.WCRemInvRDReqErr)
	}
}

// waiting returns the READ or atomic that PSN psn answers next, or nil if psn is not the next response, which it then
// requests again.
func (q *qp) waiting(psn uint32) *sendWQE {
	if psn != q.req.una {
		q.ackTo(wire.PSNAdd(psn, -1)) // answers come in order: what came before is acknowledged or lost
	}
	if q.state == verbs.QPSErr || q.sq.Idle() || psn != q.req.una {
		return nil
	}
	w := q.sq.Oldest()
	if !w.begun || !w.answered() || wire.PSNAdd(w.first, int(w.got)) != psn {
		return nil
	}
	return w
}

func (q *qp) readResponse(h *wire.Header, payload []byte) {
	w := q.waiting(h.PSN)
	switch {
	case w == nil:
		return
	case w.op != verbs.WRRDMARead:
		q.failOldest(verbs.WCBadRespErr)
		return
	}
	off := w.got * uint32(q.mtu)
	if uint32(len(payload)) != min(uint32(q.mtu), w.length-off) {
		q.failOldest(verbs.WCBadRespErr)
		return
	}
	if !q.store(w, off, payload) {
		q.failOldest(verbs.WCLocProtErr)
		return
	}
	w.got++
	q.advance(wire.PSNAdd(h.PSN, 1))
}

func (q *qp) atomicAck(h *wire.Header) {
	w := q.waiting(h.PSN)
	switch {
	case w == nil:
		return
	case w.op == verbs.WRRDMARead:
		q.failOldest(verbs.WCBadRespErr)
		return
	}
	var orig [8]byte
	binary.NativeEndian.PutUint64(orig[:], h.Orig)
	if !q.store(w, 0, orig[:]) {
		q.failOldest(verbs.WCLocProtErr)
		return
	}
	w.got = 1
	q.advance(wire.PSNAdd(h.PSN, 1))
}

// store writes response data at offset off of the work request's memory. It returns false if the keys do not cover
// that.
func (q *qp) store(w *sendWQE, off uint32, data []byte) bool {
	_, status := q.pd.scatter(w.sges, off, data)
	return status != verbs.WCLocProtErr
}

// notified handles a CNP: the network has marked packets of ours.
func (q *qp) notified() {
	r := &q.req
	q.vec.dev.count.cnps.Add(1)
	if q.kind == verbs.QPTRC && wire.PSNDiff(r.una, r.recover) >= 0 {
		r.cc.shrink(cnpFactor)
		r.recover = r.high
	}
}
