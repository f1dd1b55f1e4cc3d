package hw

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// A queue pair that is connected beside the loop is that's from Attach on: nothing of the
// loop is touched before.
func TestDetachedWhileItIsConnected(t *testing.T) {
	e := newEnds(t)
	e.connect()
	other := e.a.newQP(t, verbs.QPTRC)
	far := e.b.newQP(t, verbs.QPTRC)
	for _, q := range []*qp{other, far} {
		require.NoError(t, verbs.Init(q, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	}
	require.NoError(t, verbs.Connect(far, attrTo(e.a.dev, other.num)))
	other.Detach()
	other.Detach()
	require.NoError(t, e.a.qp.PostSend(e.write(1, 8)))
	posted := e.a.dev.Stats().Posted
	var beside sync.WaitGroup
	beside.Go(func() { require.NoError(t, verbs.Connect(other, attrTo(e.b.dev, far.num))) })
	beside.Wait()
	require.Equal(t, posted, e.a.dev.Stats().Posted, "what the loop has gathered waits for it")
	require.NotContains(t, e.a.cq.members, other)
	other.Attach()
	other.Attach()
	require.Contains(t, e.a.cq.members, other)
	require.NoError(t, other.PostSend(e.write(2, 8)))
	e.until("both complete", func() bool { return len(e.a.wcs) == 2 })
	require.NoError(t, other.Close())
	require.NoError(t, far.Close())
}

// The completions of a queue pair that was closed beside the loop are not those of the one
// that gets its numbers: the loop frees them when it has taken the completions.
func TestDetachedIsClosed(t *testing.T) {
	e := newEnds(t)
	e.connect()
	for i := range uint64(5) {
		require.NoError(t, e.a.qp.PostSend(e.write(i, 8)))
	}
	e.a.drv.Flush()
	e.unattended("completions wait in the library", func() bool { return e.lib.Waiting("fake0") == 5 })
	require.NoError(t, e.a.qp.PostSend(e.write(5, 8)))
	e.a.qp.Detach()
	require.Empty(t, e.a.cq.members)
	numbers := []uint32{e.a.qp.sq.slot, e.a.qp.rq.slot}
	var beside sync.WaitGroup
	beside.Go(func() { require.NoError(t, e.a.qp.Close()) })
	beside.Wait()
	e.a.qp = e.a.newQP(t, verbs.QPTRC)
	require.NotContains(t, numbers, e.a.qp.sq.slot)
	require.NotContains(t, numbers, e.a.qp.rq.slot)
	require.NoError(t, e.b.qp.Close())
	e.b.qp = e.b.newQP(t, verbs.QPTRC)
	e.connect()
	require.NoError(t, e.a.qp.PostSend(e.write(9, 8)))
	e.until("the next one's", func() bool { return len(e.a.wcs) > 0 && e.a.wcs[len(e.a.wcs)-1].WRID == 9 })
	require.Zero(t, e.a.qp.sq.used())
	require.Zero(t, e.a.dev.Stats().Strays)
	e.a.turn(t)
	require.Zero(t, e.a.cq.graves.len())
	require.Contains(t, numbers, e.a.newQPClosed(t), "the numbers are free")
}

// The number of a queue pair may be another one's as soon as the adapter has destroyed it:
// completions that the loop takes from then on are nothing's, those that it had looked at
// before among them.
func TestDetachedCompletesNothingBehindItsEnd(t *testing.T) {
	for _, stashed := range []bool{false, true} {
		t.Run(fmt.Sprintf("stashed %v", stashed), func(t *testing.T) {
			var h hooks
			e := newHookedEnds(t, &h)
			e.connect()
			for i := range uint64(5) {
				require.NoError(t, e.a.qp.PostSend(e.write(i, 8)))
			}
			e.a.drv.Flush()
			e.unattended("completions wait in the library", func() bool { return e.lib.Waiting("fake0") == 5 })
			if stashed {
				require.True(t, e.a.drv.Ready())
				require.Equal(t, 5, e.a.cq.stashedNow())
			}
			e.a.qp.Detach()
			h.ended = func() {
				h.ended = nil
				e.a.turn(t)
			}
			require.NoError(t, e.a.qp.Close())
			require.Empty(t, e.a.wcs)
			e.until("the numbers are free", func() bool { return e.a.cq.graves.len() == 0 })
			require.Empty(t, e.a.wcs)
			require.Zero(t, e.a.dev.Stats().Strays)
		})
	}
}

// A queue pair whose receive is refused before it is connected has completions: its numbers
// are free when the loop has taken them.
func TestFailsBeforeItIsConnected(t *testing.T) {
	for _, detached := range []bool{false, true} {
		t.Run(fmt.Sprintf("detached %v", detached), func(t *testing.T) {
			left := 0 // receives that are taken before one is refused; 0: none is
			e := newEnds(t, func(l *hwtest.Library) {
				l.RefuseRecv = func(*ibv.Recv) error {
					if left == 0 {
						return nil
					}
					if left--; left > 0 {
						return nil
					}
					return unix.ENOMEM
				}
			})
			e.connect()
			q := e.a.newQP(t, verbs.QPTRC)
			require.NoError(t, verbs.Init(q, verbs.AccessLocalWrite))
			left = 4
			for i := range uint64(6) {
				require.NoError(t, q.PostRecv(&verbs.RecvWR{WRID: i}))
			}
			if detached {
				q.Detach()
			} else {
				q.poster.flush()
			}
			require.Equal(t, verbs.QPSErr, q.State())
			numbers := []uint32{q.sq.slot, q.rq.slot}
			e.unattended("receives are flushed", func() bool { return e.lib.Waiting("fake0") > 0 })
			require.NoError(t, q.Close())
			next := e.a.newQP(t, verbs.QPTRC)
			require.NotContains(t, numbers, next.sq.slot)
			require.NotContains(t, numbers, next.rq.slot)
			require.NoError(t, verbs.Init(next, verbs.AccessLocalWrite))
			e.until("the loop has taken them", func() bool { return e.a.cq.graves.len() == 0 })
			require.Zero(t, next.sq.used())
			require.Zero(t, next.rq.used())
			require.Zero(t, e.a.dev.Stats().Strays)
			require.Contains(t, numbers, e.a.newQPClosed(t), "the numbers are free")
			require.NoError(t, next.Close())
		})
	}
}

// What a queue pair for datagrams was posted keeps no address handle when it is closed beside the loop, and
// completions that the loop has not taken by then are not those of the next queue pair with its number.
func TestDetachedDatagramsAreClosed(t *testing.T) {
	e := newEnds(t)
	ud := e.a.newQP(t, verbs.QPTUD)
	require.NoError(t, verbs.StartUD(ud, 1, 0))
	handle, err := e.a.pd.CreateAH(attrTo(e.b.dev, 0).AH)
	require.NoError(t, err)
	for i := range uint64(5) {
		wr := &verbs.SendWR{WRID: i, Opcode: verbs.WRSend, Flags: verbs.SendSignaled, AH: handle, RemoteQPN: 77, RemoteQKey: 1}
		require.NoError(t, ud.PostSend(wr))
	}
	ud.Detach()
	e.unattended("completions wait in the library", func() bool { return e.lib.Waiting("fake0") == 5 })
	var beside sync.WaitGroup
	beside.Go(func() {
		require.NoError(t, ud.Close())
		require.NoError(t, handle.Close())
	})
	beside.Wait()
	require.Zero(t, e.a.dev.Stats().AHs)
	require.Equal(t, 1, e.lib.Calls("fake0", "DestroyAH"))
	e.until("the loop has taken them", func() bool { return e.a.cq.graves.len() == 0 })
	require.Empty(t, e.a.wcs)
	require.Zero(t, e.a.dev.Stats().Strays)
}

// newQPClosed returns a number of a queue pair made and closed.
func (d *end) newQPClosed(t *testing.T) uint32 {
	q := d.newQP(t, verbs.QPTRC)
	defer func() { require.NoError(t, q.Close()) }()
	return q.sq.slot
}

// A queue pair that was reset is used again as one that was made: receives that another
// goroutine posts are not among those that the loop gathers.
func TestResetLeavesTheLoop(t *testing.T) {
	e := newEnds(t)
	e.connect()
	require.NoError(t, e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	require.NoError(t, e.b.qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	require.Empty(t, e.a.cq.members)
	require.NoError(t, verbs.Init(e.a.qp, verbs.AccessLocalWrite))
	require.NoError(t, e.a.qp.PostRecv(&verbs.RecvWR{WRID: 1}))
	require.True(t, e.a.drv.v.batch.empty())
	require.NoError(t, e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	e.connect()
	require.NoError(t, e.a.qp.PostSend(e.write(2, 8)))
	e.until("it completes", func() bool { return len(e.a.wcs) == 1 })
}
