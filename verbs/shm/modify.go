package shm

import (
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Modify implements verbs.QP. The address vector, PSNs, MTU and timeouts are accepted but ignored: the PD determines
// the peer, and memory is reliable.
func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.closed {
		return verbs.ErrClosed
	}
	to, err := verbs.CheckTransition(q.typ, q.state, attr, mask)
	if err != nil {
		return err
	}
	if err := errors.Join(verbs.CheckAttr(attr, mask), verbs.CheckPartition(attr, mask, 1)); err != nil {
		return err
	}
	switch to {
	case verbs.QPSReset:
		return q.reset()
	case verbs.QPSErr:
		q.fail()
		return nil
	case verbs.QPSRTR:
		if err := q.toRTR(attr.DestQPNum); err != nil {
			return err
		}
	case verbs.QPSRTS:
		if q.state == verbs.QPSSQE {
			q.sq.flushPosted()
		}
	case verbs.QPSInit, verbs.QPSSQD, verbs.QPSSQE: // attributes only
	}
	q.attr.Apply(attr, mask)
	q.state = to
	q.publishStatus(lifeAlive)
	if q.port != nil {
		q.tell(newsStatus)
		q.vec.schedule(q)
	}
	return nil
}

func (q *qp) toRTR(dest uint32) error {
	pt := q.vec.portOf(q.peer)
	if pt == nil || q.peer.down.Load() {
		return fmt.Errorf("%v is not connected: %w", q.peer, verbs.ErrRemoteGone)
	}
	q.port = pt
	if q.typ == verbs.QPTUD {
		q.install(pt)
		return nil
	}
	if err := q.connect(dest); err != nil {
		q.port, q.rem = nil, partner{}
		return err
	}
	q.install(pt)
	return nil
}

// reset clears everything. The block is replaced, since the peer may still use the old one; the number stays.
func (q *qp) reset() error {
	if q.state == verbs.QPSReset {
		return nil
	}
	q.peer.mu.Lock()
	off, err := q.peer.takeBlockLocked(q.log2)
	q.peer.mu.Unlock()
	if err != nil {
		return err
	}
	q.uninstall()
	q.dropBlock(0)
	q.state, q.port, q.rem, q.attr = verbs.QPSReset, nil, partner{}, verbs.QPAttr{}
	q.rq.Reset()
	q.sq.reset()
	q.begun, q.rnrDeadline = false, time.Time{}
	q.useBlock(off)
	return nil
}

// fail moves the queue pair to ERR.
func (q *qp) fail() {
	if q.state == verbs.QPSErr {
		return
	}
	q.state = verbs.QPSErr
	q.publishStatus(lifeErr)
	q.tell(newsStatus)
	if claim := q.blk.claim.Load(); claim != 0 && !q.rem.bound && q.port != nil {
		q.port.tellClaimant(claim)
	}
	q.vec.schedule(q)
}

// receiving reports whether the queue pair accepts messages.
func (q *qp) receiving() bool {
	return !q.closed && q.state >= verbs.QPSRTR && q.state != verbs.QPSErr
}

// refuse ends the queue pair because of its partner's request; an event reports it, since no completion does (IBTA vol.
// 1, 11.6.3.1).
func (q *qp) refuse(event verbs.EventType) {
	q.fail()
	q.peer.dev.async.Notify(verbs.AsyncEvent{Type: event, QP: q})
}

// peerDown ends the queue pair after its peer. Messages that the peer had sent before, and may have been told had
// arrived, are received. The oldest send fails without an answer, and the rest is flushed.
func (q *qp) peerDown() {
	if q.closed || q.state == verbs.QPSErr {
		return
	}
	if q.receiving() && q.peer.hungUp() {
		if q.typ == verbs.QPTUD {
			q.port.lastDatagrams()
		} else {
			q.receive()
		}
		if q.state == verbs.QPSErr {
			return
		}
	}
	q.rem = partner{gone: true}
	if !q.sq.Idle() {
		q.sq.failOldest(verbs.WCRetryExcErr)
	}
	q.fail()
}

// run does everything that the queue pair can do now.
func (q *qp) run() {
	if q.closed || q.state == verbs.QPSReset || q.state == verbs.QPSInit {
		return
	}
	if q.peer.down.Load() {
		q.peerDown()
	}
	if q.typ != verbs.QPTUD {
		q.exchange()
	}
	q.pump()
	if q.state == verbs.QPSErr {
		q.flushReceives()
	}
}

// exchange handles news and entries of the partner.
func (q *qp) exchange() {
	news := q.hear()
	if q.state == verbs.QPSErr {
		return
	}
	q.receive()
	switch { // entries published before the news have been received
	case q.state == verbs.QPSErr:
	case news&newsFault != 0:
		q.refuse(verbs.EventQPAccessErr)
	case news&newsBad != 0:
		q.refuse(verbs.EventQPReqErr)
	}
	q.answerWant()
}
