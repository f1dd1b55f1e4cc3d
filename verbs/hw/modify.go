package hw

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// Modify implements verbs.QP.
func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.closed {
		return verbs.ErrClosed
	}
	q.poster.flush() // what was posted before the modification belongs before it
	q.refresh()
	to, err := verbs.CheckTransition(q.kind, q.state, attr, mask)
	if err != nil {
		return err
	}
	if err := q.checkAttr(attr, mask); err != nil {
		return err
	}
	if to == verbs.QPSSQD { // rxe keeps for ever what is posted in it
		return fmt.Errorf("%v to %v: %w", q.state, to, verbs.ErrNotSupported)
	}
	if to >= verbs.QPSRTR { // from here on the queue pair is its loop's
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

// begin hands the queue pair to the loop of its vector, unless that is to be done by
// Attach.
func (q *qp) begin() {
	q.begun = true
	if q.poster.loop || q.detached {
		return
	}
	q.poster.join(&q.vec.batch)
	q.scq.members[q], q.rcq.members[q] = struct{}{}, struct{}{}
}

// Detach implements verbs.Detacher.
func (q *qp) Detach() {
	if q.closed || q.detached {
		return
	}
	q.detached = true
	q.poster.flush()
	q.leaveLoop()
}

// leaveLoop undoes begin; nothing of the queue pair is in the batch of the loop.
func (q *qp) leaveLoop() {
	if q.poster.loop {
		q.poster.loop, q.poster.batch = false, nil
		q.leaveQueues()
	}
}

// leaveQueues takes the queue pair from those that end with their completion queues.
func (q *qp) leaveQueues() {
	delete(q.scq.members, q)
	delete(q.rcq.members, q)
}

// Attach implements verbs.Detacher.
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

// modify passes attributes on as the library knows them.
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

// reset empties the queues. Completions so far stay where they are, though
// providers forget them. The queue pair is as new: until RTR it is no loop's.
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

// leaveReset moves the queue pair to INIT. From every state it is legal to go to
// ERR (table 91 of IBTA vol. 1), but the kernel's qp_state_table has no way from RESET.
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
