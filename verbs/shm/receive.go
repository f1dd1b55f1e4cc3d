package shm

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// PostRecv implements verbs.QP.
func (q *qp) PostRecv(wr *verbs.RecvWR) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.state == verbs.QPSReset:
		return fmt.Errorf("post receive in RESET: %w", verbs.ErrState)
	case q.srq != nil:
		return fmt.Errorf("post receive to a queue pair with a shared receive queue: %w", verbs.ErrInvalid)
	case len(wr.SGList) > int(q.cap.recvSGE):
		return fmt.Errorf("%d SGEs: %w", len(wr.SGList), verbs.ErrInvalid)
	case q.rq.Held() >= uint64(q.cap.recvWR):
		return verbs.ErrQueueFull
	}
	starved := q.rq.Empty()
	q.rq.Push(wr.WRID, wr.SGList)
	if q.port == nil {
		q.announce()
		return nil
	}
	if q.state == verbs.QPSErr || starved && q.blk.prod.Load() != q.blk.consumed {
		q.vec.schedule(q)
	}
	if q.state != verbs.QPSErr {
		q.announce()
		q.answerWant()
	}
	return nil
}

// announce tells the partner how many receives were ever posted.
func (q *qp) announce() {
	q.blk.receives++
	q.blk.posted.Store(q.blk.receives)
}

// answerWant marks the partner's queue pair if it waits for this one.
func (q *qp) answerWant() {
	if q.rem.bound && q.blk.want.Load() != 0 && q.blk.want.Swap(0) != 0 && !q.peer.down.Load() {
		q.port.notify(int(q.rem.vector), slotOf(q.rem.qpn))
	}
}

// receive takes the published entries, as far as receives and room in the CQ go.
func (q *qp) receive() {
	b := &q.blk
	n := b.prod.Load() - b.consumed
	if n > b.mask()+1 {
		q.peer.violation("more entries published than the ring holds")
		return
	}
	if n > 0 && !q.begun {
		q.begun = true
		if q.state == verbs.QPSRTR { // IBTA vol. 1, 11.6.3.1: communication established
			q.peer.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventCommEst, QP: q})
		}
	}
	before := b.consumed
	for ; n > 0 && q.state != verbs.QPSErr; n-- {
		i := (b.consumed & b.mask()) * 2
		if !q.deliver(b.ring[i].Load(), b.ring[i+1].Load()) {
			break
		}
		b.consumed++
	}
	if b.consumed != before {
		b.cons.Store(b.consumed)
	}
}

// discard forgets entries of a partner that is gone. It has not been told that they
// were taken, and it will not hear it any more. With own receives they begin at the
// first SEND: its staging memory may be recycled after this Progress. What a
// WRITE_WITH_IMM brought is here, and the partner knows it.
func (q *qp) discard() {
	b := &q.blk
	n := b.prod.Load() - b.consumed
	if n > b.mask()+1 {
		return
	}
	keep := uint64(0)
	for q.srq == nil && keep < n && b.ring[(b.consumed+keep)&b.mask()*2].Load()&0xff == entryWriteImm {
		keep++
	}
	b.prod.Store(b.consumed + keep)
}

// deliver handles one entry; false leaves it in the ring.
func (q *qp) deliver(first, second uint64) bool {
	op, flags := first&0xff, first&entryFlags
	if q.typ == verbs.QPTUC && q.inSend && (op == entryWriteImm || flags&entryFirst != 0) {
		q.got, q.inSend, q.drops = 0, false, false // the sender has given up the message before
	}
	if bad := q.checkEntry(op, flags); bad != "" {
		q.peer.violation(bad)
		return false
	}
	if !q.rcq.room() {
		q.rcq.wait(q, &q.fullR)
		q.starve(false)
		return false
	}
	if q.drops || !q.hasReceive() {
		return q.drop(op, flags) // PostRecv runs the queue pair again
	}
	wc := verbs.WC{
		ImmData: uint32(first >> 32), ByteLen: uint32(second >> 32), Opcode: verbs.WCRecvRDMAWithImm, SrcQP: q.rem.qpn,
	}
	switch {
	case flags&entryImm != 0:
		wc.Flags = verbs.WCWithImm
	case flags&entryInv != 0:
		wc.Flags = verbs.WCWithInv
	default:
		wc.ImmData = 0
	}
	if op == entrySegment {
		return q.segment(flags, second, wc)
	}
	q.received(wc, flags&entrySolicited != 0)
	return true
}

// hasReceive tells whether there is a receive for the message.
func (q *qp) hasReceive() bool {
	if q.srq == nil {
		return !q.rq.Empty()
	}
	have := q.sharedReceive()
	if q.typ == verbs.QPTRC {
		if q.starve(!have); !have {
			q.srq.wait(q)
		}
	}
	return have
}

// drop forgets an entry of an unreliable connection, and with it the message; a
// receive begun serves the next one (IBTA vol. 1, 9.8.2.2). Others keep it.
func (q *qp) drop(op, flags uint64) bool {
	if q.typ != verbs.QPTUC {
		return false
	}
	q.got, q.inSend = 0, op == entrySegment && flags&entryLast == 0
	if q.drops = q.inSend; !q.drops {
		q.peer.dev.counters.dropped.Add(1)
	}
	return true
}

// list is the scatter list of the receive that the message fills.
func (q *qp) list() []verbs.SGE {
	if q.srq != nil {
		return q.cur.list
	}
	return q.rq.List()
}

// checkEntry returns what is wrong with an entry.
func (q *qp) checkEntry(op, flags uint64) string {
	switch {
	case flags&entryInv != 0 && (op != entrySegment || flags&entryImm != 0 || q.typ != verbs.QPTRC):
	case op == entryWriteImm && !q.inSend:
		return ""
	case op == entrySegment && q.inSend != (flags&entryFirst != 0):
		return ""
	}
	return fmt.Sprintf("ring entry of operation %d, flags %#x", op, flags)
}

// received completes the oldest receive, or the one held of the SRQ.
func (q *qp) received(wc verbs.WC, solicited bool) {
	wc.QPNum = q.num
	retire := uint64(0)
	if q.srq != nil {
		wc.WRID, q.cur.held = q.cur.id, false
	} else {
		wc.WRID = q.rq.ID()
		retire = q.rq.Take()
	}
	q.got, q.inSend = 0, false
	q.rcq.push(&cqe{WC: wc, Retired: &q.rq.Retired, Retire: retire}, solicited)
}

// segment copies a part of a SEND out of the sender's staging memory.
func (q *qp) segment(flags, second uint64, wc verbs.WC) bool {
	off, n := second&0xffffffff*64, second>>32
	if n > segmentSize || n > 0 && (off < q.peer.remLayout.arena || !fits(off, n, q.peer.rem.size())) {
		q.peer.violation("segment outside of shared memory")
		return false
	}
	status := q.scatter(q.peer.rem.span(off*min(n, 1), n))
	switch {
	case status == verbs.WCSuccess:
	case q.typ == verbs.QPTUC && status == verbs.WCLocLenErr:
		return q.drop(entrySegment, flags)
	default:
		nak := verbs.WCRemOpErr
		if status == verbs.WCLocLenErr {
			nak = verbs.WCRemInvReqErr
		}
		wc.Status, wc.Opcode = status, verbs.WCRecv
		q.received(wc, true)
		q.fail(nak)
		return false
	}
	q.inSend = true
	if flags&entryLast != 0 {
		if wc.Flags&verbs.WCWithInv != 0 && !q.peer.invalidate(wc.ImmData, verbs.AccessRemoteInvalidate) {
			q.refuse(verbs.EventQPAccessErr, verbs.WCRemAccessErr)
			return false
		}
		wc.Opcode, wc.ByteLen = verbs.WCRecv, q.got
		q.received(wc, flags&entrySolicited != 0)
	}
	return true
}

// scatter appends data to what was received of the message.
func (q *qp) scatter(data []byte) verbs.WCStatus {
	skip := uint64(q.got)
	q.got += uint32(len(data))
	for _, s := range q.list() {
		if len(data) == 0 {
			break
		}
		if skip >= uint64(s.Length) {
			skip -= uint64(s.Length)
			continue
		}
		dst := q.peer.local(s, verbs.AccessLocalWrite)
		if dst == nil {
			return verbs.WCLocProtErr
		}
		data = data[copy(dst[skip:], data):]
		skip = 0
	}
	if len(data) > 0 {
		return verbs.WCLocLenErr
	}
	return verbs.WCSuccess
}

// flushReceives completes what is posted after an error.
func (q *qp) flushReceives() {
	if q.srq != nil {
		q.flushShared()
		return
	}
	for !q.rq.Empty() {
		if !q.rcq.room() {
			q.rcq.wait(q, &q.fullR)
			return
		}
		q.received(verbs.WC{Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv}, true)
	}
}
