package hw

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// qp is a queue pair.
type qp struct {
	pd       *pd
	vec      *vector
	h        ibv.QP
	id       uint64
	num      uint32
	kind     verbs.QPType
	cap      verbs.QPCap
	scq, rcq *cq

	// Owned by the loop, before that by the creator.
	state  verbs.QPState // as last known: an error may have moved it on
	attr   verbs.QPAttr  // what Modify has set; providers answer a query from memories of their own
	sq, rq workQueue
	poster poster
	closed bool
	// begun: it was moved to RTR, or to ERR, so that it can have completions. detached:
	// another goroutine has it. failed: nothing is posted to it any more. unmoved: it failed,
	// and may not be in ERR in the adapter.
	begun, detached, failed, unmoved bool
}

var (
	_ verbs.QP       = (*qp)(nil)
	_ verbs.Detacher = (*qp)(nil)
)

// CreateQP implements verbs.PD.
func (p *pd) CreateQP(attr *verbs.QPInitAttr) (verbs.QP, error) {
	q, err := p.plan(attr)
	if err != nil {
		return nil, err
	}
	if err := p.hold(); err != nil {
		return nil, err
	}
	if err := q.create(attr.SQSigAll); err != nil {
		p.users.Release()
		return nil, err
	}
	return q, nil
}

// plan checks what a queue pair is to be made of.
func (p *pd) plan(attr *verbs.QPInitAttr) (*qp, error) {
	scq, ok1 := attr.SendCQ.(*cq)
	rcq, ok2 := attr.RecvCQ.(*cq)
	if !ok1 || !ok2 || scq.vec != rcq.vec || scq.vec.dev != p.dev {
		return nil, fmt.Errorf("completion queues not of one vector of the device: %w", verbs.ErrInvalid)
	}
	q := &qp{pd: p, vec: scq.vec, kind: attr.Type, cap: attr.Cap, scq: scq, rcq: rcq}
	if !p.dev.has(attr.Type) {
		return nil, fmt.Errorf("%v queue pair: %w", attr.Type, verbs.ErrNotSupported)
	}
	if attr.SRQ != nil {
		return nil, fmt.Errorf("shared receive queue: %w", verbs.ErrNotSupported)
	}
	limits := queues.Limits{WR: p.dev.attr.MaxQPWR, SGE: p.dev.attr.MaxSGE, Inline: p.dev.attr.MaxInline}
	return q, limits.Check(q.cap)
}

// has tells whether the device has a transport.
func (d *Device) has(t verbs.QPType) bool {
	switch t {
	case verbs.QPTRC:
		return true
	case verbs.QPTUC:
		return d.attr.Ops&verbs.OpUC != 0
	case verbs.QPTUD:
		return d.attr.Ops&verbs.OpUD != 0
	case verbs.QPTGSI: // the kernel's
	}
	return false
}

// holdQueues keeps the completion queues open, and the entries of them that the queue pair can
// fill.
func (q *qp) holdQueues() error {
	if err := q.scq.hold(q.cap.MaxSendWR); err != nil {
		return err
	}
	if err := q.rcq.hold(q.cap.MaxRecvWR); err != nil {
		q.scq.unhold(q.cap.MaxSendWR)
		return err
	}
	return nil
}

func (q *qp) unholdQueues() {
	q.scq.unhold(q.cap.MaxSendWR)
	q.rcq.unhold(q.cap.MaxRecvWR)
}

func (q *qp) create(sigAll bool) (err error) {
	d := q.pd.dev
	if err := q.holdQueues(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			q.unholdQueues()
		}
	}()
	q.initQueues()
	if err := d.queues.add(&q.sq, &q.rq); err != nil {
		return err
	}
	q.id = d.objects.add(q)
	if q.h, q.num, err = d.ctx.CreateQP(q.request(sigAll)); err != nil {
		q.forget()
		return failure(fmt.Sprintf("%v queue pair", q.kind), err)
	}
	q.poster.init(d)
	d.use.qps.Add(1)
	return nil
}

func (q *qp) initQueues() {
	q.sq.qp, q.sq.send = q, true
	q.sq.init(q.cap.MaxSendWR)
	if q.kind == verbs.QPTUD {
		q.sq.ahs = make([]atomic.Pointer[ah], len(q.sq.ids))
	}
	q.rq.qp = q
	q.rq.init(q.cap.MaxRecvWR)
}

// request is what the library is asked for. Providers differ in whether a queue
// may have no entries at all.
func (q *qp) request(sigAll bool) *ibv.QPInit {
	r := &ibv.QPInit{
		PD: q.pd.h, ID: q.id, SendCQ: q.scq.h, RecvCQ: q.rcq.h, Cap: q.cap, Type: q.kind, SQSigAll: sigAll,
	}
	r.Cap.MaxSendSGE = max(r.Cap.MaxSendSGE, 1)
	r.Cap.MaxRecvWR, r.Cap.MaxRecvSGE = max(r.Cap.MaxRecvWR, 1), max(r.Cap.MaxRecvSGE, 1)
	return r
}

// forget removes the queue pair from what completions and events are looked up in.
func (q *qp) forget() {
	d := q.pd.dev
	d.objects.remove(q.id)
	d.queues.remove(&q.sq)
	d.queues.remove(&q.rq)
}

// Num implements verbs.QP.
func (q *qp) Num() uint32 { return q.num }

// Type implements verbs.QP.
func (q *qp) Type() verbs.QPType { return q.kind }

// State implements verbs.QP.
func (q *qp) State() verbs.QPState {
	q.refresh()
	return q.state
}

// Query implements verbs.QP.
func (q *qp) Query() verbs.QPAttr {
	q.refresh()
	attr := q.attr
	attr.State, attr.CurState = q.state, q.state
	return attr
}

// refresh asks for the state where it can have changed by itself.
func (q *qp) refresh() {
	if q.closed || q.state < verbs.QPSRTR || q.state == verbs.QPSErr {
		return
	}
	if s, err := q.pd.dev.ctx.QueryQPState(q.h); err == nil {
		q.state = s
	}
}

// fail moves the queue pair to ERR, as an error of its own would. What was posted is
// flushed, before RTR too.
func (q *qp) fail() {
	if q.failed {
		return
	}
	if err := q.pd.dev.ctx.ModifyQP(q.h, &verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState); err != nil {
		q.pd.dev.cfg.Logger.Warn("queue pair not moved to ERR", "device", q.pd.dev.Name(), "qp", q.num, "error", err)
		q.condemn()
		return
	}
	q.state, q.begun, q.failed = verbs.QPSErr, true, true
}

// condemn is fail without a call of the library: each takes the firmware its time, and a
// completion queue may have many queue pairs. An event tells the owner, which destroys the
// queue pair; what was posted may be under way until then.
func (q *qp) condemn() {
	q.state, q.begun, q.failed, q.unmoved = verbs.QPSErr, true, true, true
	q.pd.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: q})
}

// Close implements verbs.QP. Providers may forget completions of a queue pair
// that is destroyed, so they are taken first; and after it none can come, so
// that its numbers are free for the next one. Of one that is not the loop's the loop drops
// them, and frees the numbers. One that the adapter does not let go keeps all it has.
func (q *qp) Close() error {
	if q.closed {
		return nil
	}
	q.poster.drop()
	q.drain()
	q.closed = true
	d := q.pd.dev
	beside := q.begun && !q.poster.loop // completions may wait for the loop
	if beside {
		q.silence()
	}
	if err := d.ended("destroy queue pair", d.ctx.DestroyQP(q.h)); err != nil {
		return err
	}
	if beside {
		d.objects.remove(q.id)
		q.sq.leave()
		q.scq.graves.put(&q.sq)
		q.rcq.graves.put(&q.rq)
	} else {
		q.drain()
		q.disown()
		if q.poster.loop {
			q.leaveQueues()
		}
		q.forget()
	}
	d.use.qps.Add(-1)
	q.unholdQueues()
	q.pd.users.Release()
	return nil
}

// silence has the completions of a queue pair count for nothing that is destroyed beside the loop: its
// number is another one's as soon as it is. The adapter drops them as far as it can. hns forgets the queue pair at its destruction and takes those out after: a poll
// between finds the completion of a queue pair that it does not know. It fails, which ends the
// completion queue, and loses what it has taken of others.
func (q *qp) silence() {
	q.sq.gone.Store(true)
	q.rq.gone.Store(true)
	_ = q.pd.dev.ctx.ModifyQP(q.h, &verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState)
}

// drain takes the completions of the queue pair, if it can have any: before it
// was moved to RTR its completion queues are not its owner's to poll.
func (q *qp) drain() {
	if q.poster.loop {
		q.scq.drain()
		q.rcq.drain()
	}
}

// disown frees all entries: completions that still wait free nothing any more.
func (q *qp) disown() {
	q.sq.retireAll()
	q.rq.retireAll()
	if q.poster.loop {
		q.scq.disown(&q.sq)
		q.rcq.disown(&q.rq)
	}
}
