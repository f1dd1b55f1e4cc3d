package soft

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.closed {
		return verbs.ErrClosed
	}
	to, err := verbs.CheckTransition(q.kind, q.state, attr, mask)
	if err != nil {
		return err
	}
	if err := q.checkAttr(attr, mask); err != nil {
		return err
	}
	switch to {
	case verbs.QPSReset:
		q.reset()
		return nil
	case verbs.QPSErr:
		q.toErr()
		return nil
	case verbs.QPSInit, verbs.QPSRTR, verbs.QPSRTS, verbs.QPSSQD, verbs.QPSSQE: // the attributes are set below
	}
	if mask&verbs.QPAttrAV != 0 {
		av, err := q.pd.dev.resolve(&attr.AH)
		if err != nil {
			return err
		}
		q.av = av
	}
	from := q.state
	q.attr.Apply(attr, mask)
	q.state = to
	q.entered(from, to)
	return nil
}

func (q *qp) checkAttr(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := errors.Join(verbs.CheckAttr(attr, mask), verbs.CheckPartition(attr, mask, 1)); err != nil {
		return err
	}
	switch {
	case mask&verbs.QPAttrPathMTU != 0 && attr.PathMTU > q.pd.dev.mtu:
		return fmt.Errorf("path MTU %d, the port has %d: %w", attr.PathMTU.Bytes(), q.pd.dev.mtu.Bytes(), verbs.ErrInvalid)
	case mask&verbs.QPAttrMaxRDAtomic != 0 && attr.MaxRDAtomic > maxRDAtomic,
		mask&verbs.QPAttrMaxDestRDAtomic != 0 && attr.MaxDestRDAtomic > maxRDAtomic:
		return fmt.Errorf("%d and %d reads and atomics: %w", attr.MaxRDAtomic, attr.MaxDestRDAtomic, verbs.ErrInvalid)
	}
	return nil
}

// entered performs the actions of a transition.
func (q *qp) entered(from, to verbs.QPState) {
	v := q.vec
	if from < verbs.QPSRTR && to == verbs.QPSRTR {
		q.mtu = q.pd.dev.mtu.Bytes()
		if !q.datagrams() {
			q.mtu = q.attr.PathMTU.Bytes()
			q.resp.init(q.attr.RQPSN, int(q.attr.MaxDestRDAtomic))
		}
		v.install(q)
	}
	if !q.datagrams() && to >= verbs.QPSRTR {
		q.path = v.pathTo(&q.av, q.attr.DestQPNum)
	}
	if from == verbs.QPSRTR && to == verbs.QPSRTS {
		q.req.init(q.attr.SQPSN, q.mtu, q.sq.Posted())
		if !q.datagrams() { // so that a lost first message need not wait for the local ACK timeout (RFC 2140)
			q.req.rtt = q.path.rtt
			q.req.rtt.borrowed = true
		}
	}
	if to == verbs.QPSRTS && from != to {
		v.schedule(q)
	}
}

// reset clears everything but the counters, since completions in the CQs refer to them.
func (q *qp) reset() {
	q.lastWord()
	q.vec.uninstall(q)
	q.state, q.attr, q.av, q.path = verbs.QPSReset, verbs.QPAttr{}, av{}, nil
	q.sq.Reset()
	q.rq.Reset()
	q.cur.active = false
	q.narrow = false
	q.failure = verbs.WCSuccess
	q.deadline = 0
	q.req = requester{}
	q.guard = guard{}
	q.resp.drop()
	q.forgetEarly()
}

// toErr moves the queue pair to ERR and flushes both queues.
func (q *qp) toErr() {
	if q.state == verbs.QPSErr {
		return
	}
	q.lastWord()
	q.state = verbs.QPSErr
	q.deadline = 0
	q.resp.drop()
	q.forgetEarly()
	q.flushSends()
	q.flushReceives()
}

// fatal handles an error that no work request can report.
func (q *qp) fatal() {
	if q.state == verbs.QPSErr || q.closed {
		return
	}
	q.vec.dev.count.qpErrors.Add(1)
	q.vec.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: q})
	q.toErr()
}

// failOldest completes the oldest work request with an error, which takes down the queue pair or, on an unreliable
// transport, its send queue.
func (q *qp) failOldest(status verbs.WCStatus) {
	if !q.sq.Idle() {
		q.failure = status
	}
	if q.kind == verbs.QPTRC {
		q.vec.dev.count.qpErrors.Add(1)
		q.toErr()
		return
	}
	q.state = verbs.QPSSQE
	q.flushSends()
}
