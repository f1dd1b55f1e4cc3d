package hw

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.closed {
		return verbs.ErrClosed
	}
	q.poster.flush() // earlier requests must be posted before the modification
	q.refresh()
	to, err := verbs.CheckTransition(q.kind, q.state, attr, mask)
	if err != nil {
		return err
	}
	if err := q.checkAttr(attr, mask); err != nil {
		return err
	}
	if to >= verbs.QPSRTR { // from here on the loop owns the queue pair
		q.begin()
	}
	if to == verbs.QPSReset {
		return q.reset()
	}
	if to == verbs.QPSErr && q.state == verbs.QPSReset {
		if err := q.leaveReset(); err != nil {
			return err
		}
	}
	if err := q.modify(attr, mask); err != nil {
		return err
	}
	q.state = to
	q.attr.Apply(attr, mask)
	return nil
}

// begin passes the queue pair to the loop of its vector, unless Attach will do so.
func (q *qp) begin() {
	q.begun = true
	if q.poster.loop || q.detached {
		return
	}
	q.poster.join(&q.vec.batch)
	q.scq.members[q], q.rcq.members[q] = struct{}{}, struct{}{}
}

func (q *qp) Detach() {
	if q.closed || q.detached {
		return
	}
	q.detached = true
	q.poster.flush()
	q.leaveLoop()
}

// leaveLoop undoes begin. The loop's batch must have no requests of the queue pair.
func (q *qp) leaveLoop() {
	if q.poster.loop {
		q.poster.loop, q.poster.batch = false, nil
		q.leaveQueues()
	}
}

// leaveQueues removes the queue pair from those that end with their completion queues.
func (q *qp) leaveQueues() {
	delete(q.scq.members, q)
	delete(q.rcq.members, q)
}

func (q *qp) Attach() {
	if q.closed || !q.detached {
		return
	}
	q.detached = false
	if !q.begun {
		return
	}
	q.begin()
	if q.scq.ended || q.rcq.ended {
		q.condemn()
	}
}

// modify passes attributes to the library.
func (q *qp) modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	a := *attr
	a.Access &= deviceAccess
	a.Port, a.AH.Port = q.pd.dev.cfg.Port, q.pd.dev.cfg.Port
	return failure(fmt.Sprintf("modify %v to %v", q.state, attr.State), q.pd.dev.ctx.ModifyQP(q.h, &a, mask))
}

func (q *qp) checkAttr(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := errors.Join(verbs.CheckAttr(attr, mask), verbs.CheckPartition(attr, mask, q.pd.dev.pkeys)); err != nil {
		return err
	}
	most := q.pd.dev.attr.MaxRDAtomic
	if mask&verbs.QPAttrMaxRDAtomic != 0 && int(attr.MaxRDAtomic) > most ||
		mask&verbs.QPAttrMaxDestRDAtomic != 0 && int(attr.MaxDestRDAtomic) > most {
		return fmt.Errorf("%d and %d reads and atomics: %w", attr.MaxRDAtomic, attr.MaxDestRDAtomic, verbs.ErrInvalid)
	}
	if mask&verbs.QPAttrAV != 0 {
		return q.pd.dev.checkAH(&attr.AH)
	}
	return nil
}

// reset empties the queues. Completions fetched so far are kept, though providers drop them. Afterwards the queue pair
// is like new: until RTR no loop owns it.
func (q *qp) reset() error {
	q.drain()
	if err := q.modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState); err != nil {
		return err
	}
	q.drain()
	q.disown()
	q.leaveLoop()
	q.begun, q.failed, q.unmoved = false, false, false
	q.state, q.attr = verbs.QPSReset, verbs.QPAttr{}
	return nil
}

// leaveReset moves the queue pair to INIT. A move to ERR is legal from every state (table 91 of IBTA vol. 1), but the
// kernel's qp_state_table has none from RESET.
func (q *qp) leaveReset() error {
	mask := verbs.InitMask
	if q.kind == verbs.QPTUD {
		mask = verbs.UDInitMask
	}
	if err := q.modify(&verbs.QPAttr{State: verbs.QPSInit}, mask); err != nil {
		return err
	}
	q.state = verbs.QPSInit
	return nil
}
