package shm

import (
	"fmt"
	"math/bits"

	"github.com/smcgw/smcgw/verbs"
)

// recvQueue holds the posted receives: head <= retired-or-not <= tail, all
// counters only grow.
type recvQueue struct {
	ids     []uint64 // by counter, length a power of two
	sges    []verbs.SGE
	counts  []uint8
	perWR   int
	head    uint64
	tail    uint64
	retired uint64 // completion polled
	got     uint32 // bytes received of the SEND under way
	inSend  bool
}

func (r *recvQueue) init(c verbs.QPCap) {
	if c.MaxRecvWR == 0 {
		return
	}
	n := 1 << bits.Len(uint(c.MaxRecvWR-1))
	r.ids, r.perWR = make([]uint64, n), c.MaxRecvSGE
	if r.perWR > 0 {
		r.sges, r.counts = make([]verbs.SGE, n*r.perWR), make([]uint8, n)
	}
}

// reset forgets what is posted; see sendQueue.reset.
func (r *recvQueue) reset() {
	r.head, r.retired, r.got, r.inSend = r.tail, r.tail, 0, false
}

func (r *recvQueue) push(wr *verbs.RecvWR) {
	i := int(r.tail & uint64(len(r.ids)-1))
	r.ids[i] = wr.WRID
	if r.perWR > 0 {
		r.counts[i] = uint8(copy(r.sges[i*r.perWR:], wr.SGList))
	}
	r.tail++
}

// list is the scatter list of the oldest receive.
func (r *recvQueue) list() []verbs.SGE {
	if r.perWR == 0 {
		return nil
	}
	i := int(r.head & uint64(len(r.ids)-1))
	return r.sges[i*r.perWR:][:r.counts[i]]
}

// PostRecv implements verbs.QP.
func (q *qp) PostRecv(wr *verbs.RecvWR) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.state == verbs.QPSReset:
		return fmt.Errorf("post receive in RESET: %w", verbs.ErrState)
	case len(wr.SGList) > q.cap.MaxRecvSGE:
		return fmt.Errorf("%d SGEs: %w", len(wr.SGList), verbs.ErrInvalid)
	case q.rq.tail-q.rq.retired >= uint64(q.cap.MaxRecvWR):
		return verbs.ErrQueueFull
	}
	starved := q.rq.head == q.rq.tail
	q.rq.push(wr)
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
		q.port.notify(q.rem.vector, slotOf(q.rem.qpn))
	}
}

// receive takes the published entries, as far as receives and room in the CQ go.
func (q *qp) receive() {
	b := &q.blk
	n := b.prod.Load() - b.consumed
	if n > b.mask+1 {
		q.peer.violation("more entries published than the ring holds")
		return
	}
	before := b.consumed
	for ; n > 0 && q.state != verbs.QPSErr; n-- {
		i := (b.consumed & b.mask) * 2
		if !q.deliver(b.ring[i].Load(), b.ring[i+1].Load()) {
			break
		}
		b.consumed++
	}
	if b.consumed != before {
		b.cons.Store(b.consumed)
	}
}

// deliver handles one entry; false leaves it in the ring.
func (q *qp) deliver(first, second uint64) bool {
	op, flags := first&0xff, first&entryFlags
	if bad := q.checkEntry(op, flags); bad != "" {
		q.peer.violation(bad)
		return false
	}
	if q.rq.head == q.rq.tail {
		return false // PostRecv runs the queue pair again
	}
	if !q.rcq.room() {
		q.rcq.wait(q, &q.fullR)
		return false
	}
	wc := verbs.WC{ImmData: uint32(first >> 32), ByteLen: uint32(second >> 32), Opcode: verbs.WCRecvRDMAWithImm}
	if flags&entryImm != 0 {
		wc.Flags = verbs.WCWithImm
	} else {
		wc.ImmData = 0
	}
	if op == entrySegment {
		return q.segment(flags, second, wc)
	}
	q.received(wc, flags&entrySolicited != 0)
	return true
}

// checkEntry returns what is wrong with an entry.
func (q *qp) checkEntry(op, flags uint64) string {
	switch {
	case op == entryWriteImm && !q.rq.inSend:
		return ""
	case op == entrySegment && q.rq.inSend != (flags&entryFirst != 0):
		return ""
	}
	return fmt.Sprintf("ring entry of operation %d, flags %#x", op, flags)
}

// received completes the oldest receive.
func (q *qp) received(wc verbs.WC, solicited bool) {
	r := &q.rq
	wc.WRID, wc.QPNum, wc.SrcQP = r.ids[r.head&uint64(len(r.ids)-1)], q.num, q.rem.qpn
	r.head++
	r.got, r.inSend = 0, false
	q.rcq.push(cqe{wc: wc, qp: q, retire: r.head, recv: true}, solicited)
}

// segment copies a part of a SEND out of the sender's staging memory.
func (q *qp) segment(flags, second uint64, wc verbs.WC) bool {
	off, n := second&0xffffffff*64, second>>32
	if n > segmentSize || n > 0 && (off < q.peer.remLayout.arena || !fits(off, n, q.peer.rem.size())) {
		q.peer.violation("segment outside of shared memory")
		return false
	}
	if status := q.scatter(q.peer.rem.span(off*min(n, 1), n)); status != verbs.WCSuccess {
		nak := verbs.WCRemOpErr
		if status == verbs.WCLocLenErr {
			nak = verbs.WCRemInvReqErr
		}
		wc.Status, wc.Opcode = status, verbs.WCRecv
		q.received(wc, true)
		q.fail(nak)
		return false
	}
	q.rq.inSend = true
	if flags&entryLast != 0 {
		wc.Opcode, wc.ByteLen = verbs.WCRecv, q.rq.got
		q.received(wc, flags&entrySolicited != 0)
	}
	return true
}

// scatter appends data to what was received of the message.
func (q *qp) scatter(data []byte) verbs.WCStatus {
	skip := uint64(q.rq.got)
	q.rq.got += uint32(len(data))
	for _, s := range q.rq.list() {
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
	for q.rq.head != q.rq.tail {
		if !q.rcq.room() {
			q.rcq.wait(q, &q.fullR)
			return
		}
		q.received(verbs.WC{Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv}, true)
	}
}
