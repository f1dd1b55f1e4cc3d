package soft

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// qp is a queue pair. As in rxe its work is divided into three parts, each with its own state, all run by the loop of
// the vector:
//
//	           PostSend ─► requester ── requests ──►┐
//	send CQ ◄── completer ◄── acknowledgements ──── network
//	recv CQ ◄── responder ◄── requests ────────────┘
//	           PostRecv ─►     └── acknowledgements, READ responses ──► network
//
//	qp.go         the object            modify.go     state machine, errors
//	sendqueue.go  posted sends          recvqueue.go  posted receives
//	requester.go  what to send now      completer.go  what answers mean
//	responder.go  requests in order
//	retransmit.go timers, going back    replies.go    answers, READ, atomics
//	datagram.go   UD and GSI            uc.go         UC
//	early.go      requests out of order
//	guard.go      what is accepted from a peer that guards, too
type qp struct {
	pd   *pd
	vec  *vector
	num  uint32
	kind verbs.QPType
	cap  verbs.QPCap
	sig  bool
	scq  *cq
	rcq  *cq

	state  verbs.QPState
	attr   verbs.QPAttr
	av     av
	path   *path
	mtu    int
	closed bool
	guard  guard
	queued bool // in vector.ready
	owes   bool // in vector.acks
	narrow bool // the path takes shorter packets only: fail in the next turn

	deadline int64          // when to call expired, 0 = never
	failure  verbs.WCStatus // status of the oldest work request, while its completion waits for room
	timerAt  int64          // deadline in the timer heap, 0 = not in the heap

	sq   queues.Sends[sendWQE]
	rq   queues.Receives
	cur  recvWQE // the receive of the message being received
	req  requester
	resp responder
}

var _ verbs.QP = (*qp)(nil)

func newQP(p *pd, attr *verbs.QPInitAttr) (*qp, error) {
	scq, ok1 := attr.SendCQ.(*cq)
	rcq, ok2 := attr.RecvCQ.(*cq)
	if !ok1 || !ok2 || scq.vec != rcq.vec || scq.vec.dev != p.dev || scq.queue.Closed() || rcq.queue.Closed() {
		return nil, fmt.Errorf("completion queues not of one vector of the device: %w", verbs.ErrInvalid)
	}
	q := &qp{pd: p, vec: scq.vec, kind: attr.Type, cap: attr.Cap, sig: attr.SQSigAll, scq: scq, rcq: rcq}
	switch attr.Type {
	case verbs.QPTRC, verbs.QPTUC, verbs.QPTUD, verbs.QPTGSI:
	default:
		return nil, fmt.Errorf("%v queue pair: %w", attr.Type, verbs.ErrNotSupported)
	}
	if err := limits.Check(q.cap); err != nil {
		return nil, err
	}
	q.rq = queues.NewReceives(q.cap.MaxRecvWR, q.cap.MaxRecvSGE)
	q.cur.sges = make([]verbs.SGE, 0, q.cap.MaxRecvSGE)
	if err := p.dev.admit(q); err != nil {
		return nil, err
	}
	q.count(1)
	return q, nil
}

// admit assigns a number to a queue pair.
func (d *Device) admit(q *qp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return verbs.ErrClosed
	case q.kind == verbs.QPTGSI && d.gsi:
		return fmt.Errorf("general services queue pair: %w", verbs.ErrBusy)
	case q.kind == verbs.QPTGSI:
		d.gsi, q.num = true, gsiQPN
		d.gsiVector.Store(int32(q.vec.index))
		return nil
	}
	qpn, ok := d.slots.take(q.vec.index)
	if !ok {
		return fmt.Errorf("queue pairs: %w", verbs.ErrNoMemory)
	}
	q.num = qpn
	return nil
}

// count adds n to the user counts of the objects that the queue pair uses.
func (q *qp) count(n int32) {
	q.scq.users.Add(n)
	q.rcq.users.Add(n)
	q.pd.dev.qpCount.Add(int64(n))
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Type() verbs.QPType { return q.kind }

func (q *qp) State() verbs.QPState { return q.state }

func (q *qp) Query() verbs.QPAttr {
	attr := q.attr
	attr.State, attr.CurState = q.state, q.state
	return attr
}

func (q *qp) Close() error {
	if q.closed {
		return nil
	}
	q.lastWord()
	q.closed = true
	q.vec.uninstall(q)
	q.forgetEarly()
	q.deadline, q.timerAt = 0, 0
	q.count(-1)
	q.pd.users.Release()
	d := q.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.num == gsiQPN {
		d.gsi = false
		d.gsiVector.Store(-1)
	} else {
		d.slots.put(q.num)
	}
	return nil
}

// datagrams reports whether the queue pair is connectionless.
func (q *qp) datagrams() bool { return q.kind == verbs.QPTUD || q.kind == verbs.QPTGSI }

// receives reports whether the queue pair can receive a packet of this kind at all.
func (q *qp) receives(o wire.Opcode) bool {
	if q.state < verbs.QPSRTR || q.state == verbs.QPSErr {
		return false
	}
	switch o.Transport() {
	case wire.RC:
		if o.Traits()&wire.Response != 0 && q.state != verbs.QPSRTS {
			return false
		}
		return q.kind == verbs.QPTRC
	case wire.UC:
		return q.kind == verbs.QPTUC
	case wire.UD:
		return q.datagrams()
	case wire.CNPClass:
		return !q.datagrams()
	default:
		return false
	}
}

// receive handles a packet that has passed all checks.
func (q *qp) receive(h *wire.Header, payload []byte, d *datagram) {
	switch {
	case h.Opcode == wire.CNP:
		q.notified()
	case h.Opcode.Traits()&wire.Response != 0:
		q.response(h, payload, d.src.Port())
	case q.kind == verbs.QPTRC:
		q.request(h, payload, d.src.Port())
	case q.kind == verbs.QPTUC:
		q.unreliable(h, payload)
	default:
		q.datagram(h, payload, d)
	}
}

func (q *qp) PostRecv(wr *verbs.RecvWR) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.state == verbs.QPSReset:
		return fmt.Errorf("post receive in RESET: %w", verbs.ErrState)
	case len(wr.SGList) > q.cap.MaxRecvSGE:
		return fmt.Errorf("%d SGEs: %w", len(wr.SGList), verbs.ErrInvalid)
	case q.rq.Held() >= uint64(q.cap.MaxRecvWR):
		return verbs.ErrQueueFull
	}
	q.rq.Push(wr.WRID, wr.SGList)
	if q.state == verbs.QPSErr {
		q.flushReceives()
	}
	return nil
}

// takeRecv ensures that the message being received has a receive.
func (q *qp) takeRecv() bool {
	w := &q.cur
	if w.active || q.rq.Empty() {
		return w.active
	}
	w.id, w.sges, w.active, w.got = q.rq.ID(), append(w.sges[:0], q.rq.List()...), true, 0
	w.retire = q.rq.Take()
	return true
}

// received completes the receive of the current message.
func (q *qp) received(wc *verbs.WC) {
	w := &q.cur
	wc.WRID, wc.QPNum = w.id, q.num
	w.active = false
	q.rcq.push(&cqe{WC: *wc, Retired: &q.rq.Retired, Retire: w.retire})
}
