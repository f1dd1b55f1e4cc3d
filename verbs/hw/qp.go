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
	state  verbs.QPState // last known state: an error may have changed it
	attr   verbs.QPAttr  // as set by Modify, since providers answer queries from their own caches
	sq, rq workQueue
	poster poster
	closed bool
	// begun: moved to RTR or ERR, so it can have completions. detached: another goroutine owns it. failed: nothing is
	// posted to it any more. unmoved: failed, but may not be in ERR in the adapter.
	begun, detached, failed, unmoved bool
}

var (
	_ verbs.QP       = (*qp)(nil)
	_ verbs.Detacher = (*qp)(nil)
)

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

// plan checks the attributes of a new queue pair.
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
	limits := queues.Limits{WR: p.dev.attr.MaxQPWR, SGE: p.dev.attr.MaxSGE, Inline: p.dev.attr.MaxInline}
	return q, limits.Check(q.cap)
}

// has reports whether the device supports a transport.
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

// holdQueues holds the completion queues, and reserves the completions that the queue pair can have outstanding.
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

// request returns the attributes for the library. Not all providers accept a queue without entries.
func (q *qp) request(sigAll bool) *ibv.QPInit {
	r := &ibv.QPInit{
		PD: q.pd.h, ID: q.id, SendCQ: q.scq.h, RecvCQ: q.rcq.h, Cap: q.cap, Type: q.kind, SQSigAll: sigAll,
	}
	r.Cap.MaxSendSGE = max(r.Cap.MaxSendSGE, 1)
	r.Cap.MaxRecvWR, r.Cap.MaxRecvSGE = max(r.Cap.MaxRecvWR, 1), max(r.Cap.MaxRecvSGE, 1)
	return r
}

// forget removes the queue pair from the tables in which completions and events are looked up.
func (q *qp) forget() {
	d := q.pd.dev
	d.objects.remove(q.id)
	d.queues.remove(&q.sq)
	d.queues.remove(&q.rq)
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) Type() verbs.QPType { return q.kind }

func (q *qp) State() verbs.QPState {
	q.refresh()
	return q.state
}

func (q *qp) Query() verbs.QPAttr {
	q.refresh()
	attr := q.attr
	attr.State, attr.CurState = q.state, q.state
	return attr
}

// refresh queries the state if it can have changed by itself.
func (q *qp) refresh() {
	if q.closed || q.state < verbs.QPSRTR || q.state == verbs.QPSErr {
		return
	}
	if s, err := q.pd.dev.ctx.QueryQPState(q.h); err == nil {
		q.state = s
	}
}

// fail moves the queue pair to ERR, as its own error would. Posted requests are flushed, even before RTR.
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

// condemn is fail without a call of the library, because each call takes the firmware time, and a completion queue may
// have many queue pairs. An event tells the owner, which must destroy the queue pair; posted requests may be in flight
// until then.
func (q *qp) condemn() {
	q.state, q.begun, q.failed, q.unmoved = verbs.QPSErr, true, true, true
	q.pd.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: q})
}

// Close implements verbs.QP. Providers may drop the completions of a destroyed queue pair, so they are fetched first;
// none can come afterwards, so its numbers can be reused. If the queue pair is not owned by the loop, the loop drops
// the completions and frees the numbers later. A queue pair that the adapter does not destroy keeps everything it has.
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

// silence makes the completions of a queue pair that is destroyed outside of the loop be ignored, since its number may
// be reused immediately. Moving it to RESET makes the adapter drop them as far as it can. That matters for hns, which
// removes the queue pair from its table at destruction and its completions only afterwards: a poll in between finds a
// completion of an unknown queue pair and fails, which ends the completion queue and loses completions of others that
// it had taken.
func (q *qp) silence() {
	q.sq.gone.Store(true)
	q.rq.gone.Store(true)
	_ = q.pd.dev.ctx.ModifyQP(q.h, &verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState)
}

// drain fetches the completions of the queue pair, if it can have any: before RTR its owner may not poll its completion
// queues.
func (q *qp) drain() {
	if q.poster.loop {
		q.scq.drain()
		q.rcq.drain()
	}
}

// disown frees all entries; completions still waiting free nothing any more.
func (q *qp) disown() {
	q.sq.retireAll()
	q.rq.retireAll()
	if q.poster.loop {
		q.scq.disown(&q.sq)
		q.rcq.disown(&q.rq)
	}
}
