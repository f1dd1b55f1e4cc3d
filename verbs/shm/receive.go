package shm

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

func (q *qp) PostRecv(wr *verbs.RecvWR) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.state == verbs.QPSReset:
		return fmt.Errorf("post receive in RESET: %w", verbs.ErrState)
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

// announce publishes how many receives were ever posted.
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

// receive consumes published entries, as far as receives and room in the CQ allow.
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

// deliver handles one entry; false leaves it in the ring.
func (q *qp) deliver(first, second uint64) bool {
	if word := uint32(first); word != entryWriteImm {
		q.peer.violation(fmt.Sprintf("ring entry %#x", word))
		return false
	}
	if !q.rcq.room() {
		q.rcq.wait(q, &q.fullR)
		return false
	}
	if q.rq.Empty() {
		return false // PostRecv runs the queue pair again
	}
	q.received(verbs.WC{
		Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: uint32(first >> 32), ByteLen: uint32(second >> 32),
		SrcQP: q.rem.qpn,
	})
	return true
}

// received completes the oldest receive.
func (q *qp) received(wc verbs.WC) {
	wc.QPNum, wc.WRID = q.num, q.rq.ID()
	q.rcq.push(&cqe{WC: wc, Retired: &q.rq.Retired, Retire: q.rq.Take()})
}

// flushReceives completes posted receives after an error.
func (q *qp) flushReceives() {
	for !q.rq.Empty() {
		if !q.rcq.room() {
			q.rcq.wait(q, &q.fullR)
			return
		}
		q.received(verbs.WC{Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv})
	}
}
