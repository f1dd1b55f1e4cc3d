package hw

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// hooks are what a test does within calls of the library; nil: nothing. An error of a hook
// is that of the call, which then does nothing.
type hooks struct {
	*hwtest.Library

	notified func()                    // after Notify
	modify   func(*verbs.QPAttr) error // before ModifyQP
	create   func()                    // before CreateQP
	destroy  func()                    // before DestroyQP
	ended    func()                    // after DestroyQP
}

type hookedContext struct {
	ibv.Context
	h *hooks
}

func (h *hooks) Open(name string) (ibv.Context, error) {
	ctx, err := h.Library.Open(name)
	return &hookedContext{ctx, h}, err
}

func (c *hookedContext) Notify(cqs []ibv.CQ) error {
	err := c.Context.Notify(cqs)
	if c.h.notified != nil {
		c.h.notified()
	}
	return err
}

func (c *hookedContext) ModifyQP(q ibv.QP, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if c.h.modify != nil {
		if err := c.h.modify(attr); err != nil {
			return err
		}
	}
	return c.Context.ModifyQP(q, attr, mask)
}

func (c *hookedContext) CreateQP(init *ibv.QPInit) (ibv.QP, uint32, error) {
	if c.h.create != nil {
		c.h.create()
	}
	return c.Context.CreateQP(init)
}

func (c *hookedContext) DestroyQP(q ibv.QP) error {
	if c.h.destroy != nil {
		c.h.destroy()
	}
	err := c.Context.DestroyQP(q)
	if c.h.ended != nil {
		c.h.ended()
	}
	return err
}

// newHookedEnds is newEnds where the calls of the first adapter have hooks.
func newHookedEnds(t testing.TB, h *hooks, change ...func(*hwtest.Library)) *ends {
	h.Library = newLibrary(t, 2, change...)
	e := &ends{t: t, lib: h.Library}
	e.a = newEnd(t, h.Library, "fake0", func(c *Config) { c.Library = h })
	e.b = newEnd(t, h.Library, "fake1")
	return e
}

// A queue that is made while the loop arms its queues is armed the next time.
func TestQueueMadeWhileOthersAreArmed(t *testing.T) {
	var h hooks
	e := newHookedEnds(t, &h)
	var late verbs.CQ
	h.notified = func() {
		h.notified = nil
		var err error
		late, err = e.a.dev.CreateCQ(verbs.CQAttr{Depth: 100})
		require.NoError(t, err)
	}
	require.True(t, e.a.drv.Arm())
	require.False(t, late.(*cq).armed)
	require.Equal(t, 1, e.lib.Calls("fake0", "Notify"))
	require.True(t, e.a.drv.Arm())
	require.True(t, late.(*cq).armed)
	require.Equal(t, 2, e.lib.Calls("fake0", "Notify"))
	require.NoError(t, late.Close())
}

// stay has the adapter refuse to move queue pairs to ERR.
func (h *hooks) stay() {
	h.modify = func(a *verbs.QPAttr) error {
		if a.State == verbs.QPSErr {
			return unix.EAGAIN
		}
		return nil
	}
}

// Nothing goes out after a refused request, also where the adapter does not move its queue
// pair to ERR: it completes with its error, those after it are flushed, an event tells of
// it, and nothing more is posted. What was under way completes as it does, and frees nothing
// twice.
func TestRefusedSendWhereNothingMoves(t *testing.T) {
	var h hooks
	refusing := false
	e := newHookedEnds(t, &h, func(l *hwtest.Library) {
		l.RefuseSend = func(s *ibv.Send) error {
			if refusing && entryOf(s.WRID) == 2 && s.Count > 0 {
				return unix.ENOMEM
			}
			return nil
		}
	})
	e.connect()
	h.stay()
	refusing = true
	copy(e.a.mr.Bytes(), "abcd")
	for i := range uint64(4) {
		wr := e.write(i, 1)
		wr.SGList[0].Addr += i
		wr.RemoteAddr += i
		require.NoError(t, e.a.qp.PostSend(wr))
	}
	e.a.drv.Flush()
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: e.a.qp}, nextEvent(t, e.a.dev))
	require.Equal(t, verbs.QPSErr, e.a.qp.State())
	require.ErrorIs(t, e.a.qp.PostSend(e.write(9, 1)), verbs.ErrState)
	require.ErrorIs(t, e.a.qp.PostRecv(&verbs.RecvWR{}), verbs.ErrState)
	e.until("all completions", func() bool { return len(e.a.wcs) == 4 })
	got := map[uint64]verbs.WCStatus{}
	for _, wc := range e.a.wcs {
		got[wc.WRID] = wc.Status
	}
	require.Equal(t, map[uint64]verbs.WCStatus{
		0: verbs.WCSuccess, 1: verbs.WCSuccess, 2: verbs.WCLocQPOpErr, 3: verbs.WCWRFlushErr,
	}, got)
	require.Equal(t, []byte{'a', 'b', 0, 0}, e.b.mr.Bytes()[:4])
	require.Zero(t, e.a.qp.sq.used())
}

// A refused receive does the same.
func TestRefusedReceiveWhereNothingMoves(t *testing.T) {
	var h hooks
	refusing := false
	e := newHookedEnds(t, &h, func(l *hwtest.Library) {
		l.RefuseRecv = func(r *ibv.Recv) error {
			if refusing && entryOf(r.WRID) == 0 && r.Count > 0 {
				return unix.ENOMEM
			}
			return nil
		}
	})
	e.connect()
	h.stay()
	refusing = true
	sge := []verbs.SGE{{Addr: e.a.mr.Addr(), Length: 8, LKey: e.a.mr.LKey()}}
	require.NoError(t, e.a.qp.PostRecv(&verbs.RecvWR{WRID: 1, SGList: sge}))
	require.NoError(t, e.a.qp.PostRecv(&verbs.RecvWR{WRID: 2, SGList: sge}))
	posts := e.lib.Calls("fake0", "Post")
	e.a.drv.Flush()
	require.Equal(t, posts+1, e.lib.Calls("fake0", "Post"), "nothing is posted again")
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: e.a.qp}, nextEvent(t, e.a.dev))
	e.until("all completions", func() bool { return len(e.a.wcs) == 2 })
	ids, list := statuses(e.a.wcs)
	require.Equal(t, []uint64{1, 2}, ids)
	require.Equal(t, []verbs.WCStatus{verbs.WCLocQPOpErr, verbs.WCWRFlushErr}, list)
}

// The end of a completion queue takes the loop no call of the library for each of its queue
// pairs: they count as failed, events tell of them, and their owner closes them.
func TestOverrunCallsNothing(t *testing.T) {
	e := newEnds(t)
	e.connect()
	other := e.a.newQP(t, verbs.QPTRC)
	require.NoError(t, verbs.Init(other, 0))
	other.Detach()
	require.NoError(t, verbs.Connect(other, attrTo(e.b.dev, e.b.qp.num)))
	calls := e.lib.Calls("fake0", "ModifyQP")
	e.a.dev.overran(e.a.cq)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: e.a.cq}, nextEvent(t, e.a.dev))
	_, err := e.a.cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrCQOverrun)
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: e.a.qp}, nextEvent(t, e.a.dev))
	other.Attach()
	require.Equal(t, verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: other}, nextEvent(t, e.a.dev))
	require.Equal(t, calls, e.lib.Calls("fake0", "ModifyQP"))
	for _, q := range []*qp{e.a.qp, other} {
		require.Equal(t, verbs.QPSErr, q.State())
		require.ErrorIs(t, q.PostSend(e.write(1, 8)), verbs.ErrState)
	}
	require.NoError(t, other.Close())
	require.NoError(t, e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	require.NoError(t, verbs.Init(e.a.qp, 0))
	require.NoError(t, e.a.qp.PostRecv(&verbs.RecvWR{}), "a reset makes it new")
}

// A queue pair is reset before another goroutine destroys it, beside polls of its completion
// queues, whether or not the adapter does that. One of the loop's, and one without
// completions, need no reset.
func TestResetBeforeItIsDestroyedBesideTheLoop(t *testing.T) {
	var h hooks
	e := newHookedEnds(t, &h)
	var calls []string
	var refusal error
	h.modify = func(a *verbs.QPAttr) error {
		if a.State == verbs.QPSReset {
			calls = append(calls, "reset")
			return refusal
		}
		return nil
	}
	h.destroy = func() { calls = append(calls, "destroy") }
	begun := func() *qp {
		q := e.a.newQP(t, verbs.QPTRC)
		require.NoError(t, verbs.Init(q, 0))
		require.NoError(t, verbs.Connect(q, attrTo(e.b.dev, e.b.qp.num)))
		return q
	}
	for _, refusal = range []error{nil, unix.EIO} {
		q := begun()
		q.Detach()
		require.NoError(t, q.Close())
	}
	require.Equal(t, []string{"reset", "destroy", "reset", "destroy"}, calls)
	calls = nil
	require.NoError(t, begun().Close())
	fresh := e.a.newQP(t, verbs.QPTRC)
	require.NoError(t, verbs.Init(fresh, 0))
	require.NoError(t, fresh.Close())
	require.Equal(t, []string{"destroy", "destroy"}, calls)
	e.until("the loop has taken what completed", func() bool { return e.a.cq.graves.len() == 0 })
}

// A completion queue is not destroyed while the library makes a queue pair of it, and none is
// made of one that is closed.
func TestCompletionQueueOfQueuePairThatIsMade(t *testing.T) {
	var h hooks
	e := newHookedEnds(t, &h)
	one := func() *cq {
		c, err := e.a.dev.CreateCQ(verbs.CQAttr{Depth: 40})
		require.NoError(t, err)
		return c.(*cq)
	}
	scq, rcq := one(), one()
	h.create = func() {
		require.ErrorIs(t, scq.Close(), verbs.ErrBusy)
		require.ErrorIs(t, rcq.Close(), verbs.ErrBusy)
	}
	attr := &verbs.QPInitAttr{SendCQ: scq, RecvCQ: rcq, Type: verbs.QPTRC, Cap: smallCap}
	q, err := e.a.pd.CreateQP(attr)
	require.NoError(t, err)
	require.ErrorIs(t, rcq.Close(), verbs.ErrBusy)
	require.NoError(t, q.Close())
	h.create = func() { t.Error("the library was asked") }
	require.NoError(t, rcq.Close())
	require.NoError(t, rcq.Close(), "twice")
	_, err = e.a.pd.CreateQP(attr)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.Zero(t, scq.reserved.Load())
	require.NoError(t, scq.Close())
}
