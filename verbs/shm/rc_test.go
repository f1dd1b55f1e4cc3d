package shm

import (
	"testing"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// A queue pair that was reset does not get back to a partner that was not.
func TestPartnerUsedBefore(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b)
	b.NoError(d.PostRecv(&verbs.RecvWR{}))
	a.NoError(q.PostSend(imm(1)))
	settle(a, b)
	a.NoError(q.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	a.NoError(verbs.Init(q, allRights))
	a.ErrorIs(verbs.Connect(q, verbs.ConnectAttr(d.num)), verbs.ErrRemoteGone)
	settle(a, b)
	a.NoError(a.p.Err())
	b.NoError(b.p.Err())
}

// An RC queue pair does not connect to one of UD.
func TestTransports(t *testing.T) {
	a, b := newSides(t)
	q := a.qp(verbs.QPTRC)
	a.NoError(verbs.Init(q, allRights))
	a.ErrorIs(verbs.Connect(q, verbs.ConnectAttr(b.ud().num)), verbs.ErrRemoteGone)
}

func rnr(retries, timer uint8) func(*verbs.QPAttr) {
	return func(a *verbs.QPAttr) { a.RNRRetry, a.MinRNRTimer = retries, timer }
}

// The next message has a clock of its own although the one before was sent when its time
// was over.
func TestClockRestartsAtExpiry(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, rnr(1, 14))
	a.NoError(q.PostSend(imm(1)))
	a.NoError(q.PostSend(imm(2)))
	a.turn()
	a.False(q.rnrDeadline.IsZero())
	time.Sleep(time.Until(q.rnrDeadline))
	b.NoError(d.PostRecv(&verbs.RecvWR{}))
	next := q.vec.expire(time.Now())
	a.Equal(verbs.QPSRTS, q.State())
	a.Equal(q.rnrDeadline, next)
	time.Sleep(time.Until(next))
	a.Zero(q.vec.expire(time.Now()))
	a.Equal(verbs.QPSErr, q.State())
	settle(a, b)
	a.Equal([]verbs.WCStatus{verbs.WCSuccess, verbs.WCRNRRetryExcErr}, statuses(a.send))
}
