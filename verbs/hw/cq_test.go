package hw

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
)

// A vector may sleep only when nothing is left: completions from before the
// arming raise no event, so Arm finds them itself.
func TestArmFindsWhatWasThere(t *testing.T) {
	e := newEnds(t)
	e.connect()
	require.True(t, e.a.drv.Arm())
	require.Equal(t, 1, e.lib.Calls("fake0", "Notify"))
	require.True(t, e.a.drv.Arm())
	require.Equal(t, 1, e.lib.Calls("fake0", "Notify"), "armed still")
	require.NoError(t, e.a.qp.PostSend(e.write(1, 8)))
	require.False(t, e.a.drv.Arm(), "not posted yet")
	e.a.drv.Flush()
	e.unattended("ready", func() bool { return !e.a.drv.Arm() })
	require.Equal(t, 1, e.a.cq.stashedNow())
	worked, _ := e.a.drv.Progress(time.Now())
	require.True(t, worked)
	require.True(t, e.a.drv.Ready())
	require.Equal(t, 1, e.a.qp.sq.used(), "until it was polled")
	polls := e.lib.Calls("fake0", "Poll")
	e.a.turn(t)
	require.Len(t, e.a.wcs, 1)
	require.Equal(t, polls, e.lib.Calls("fake0", "Poll"), "from the stash")
	require.Zero(t, e.a.qp.sq.used())
	e.unattended("quiet", e.a.drv.Arm)
}

// unattended waits without driving: what the adapter does by itself.
func (e *ends) unattended(what string, cond func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(100 * time.Microsecond) {
		require.True(e.t, time.Now().Before(deadline), "never: %s", what)
	}
}

// Ready asks the library; what it finds is kept.
func TestReady(t *testing.T) {
	e := newEnds(t)
	e.connect()
	require.False(t, e.a.drv.Ready())
	require.NoError(t, e.a.qp.PostSend(e.write(1, 8)))
	require.True(t, e.a.drv.Ready(), "there is something to flush")
	e.a.drv.Flush()
	e.unattended("ready", e.a.drv.Ready)
	e.a.turn(t)
	require.Len(t, e.a.wcs, 1)
}

// Completions of a queue pair stay when it is closed or reset, on adapters that
// forget them, too, and they free nothing of those that come after it.
func TestStashOfEndedQueuePairs(t *testing.T) {
	e := newEnds(t, func(l *hwtest.Library) { l.Forgets = true })
	e.connect()
	for i := range uint64(5) {
		require.NoError(t, e.a.qp.PostSend(e.write(i, 8)))
	}
	e.a.drv.Flush()
	e.unattended("completions", func() bool { e.a.drv.Ready(); return e.a.cq.stashedNow() == 5 })
	require.NoError(t, e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	require.Zero(t, e.a.qp.sq.used())
	require.NoError(t, e.b.qp.Close())
	e.b.qp = e.b.newQP(t, verbs.QPTRC)
	e.connect()
	require.NoError(t, e.a.qp.PostSend(e.write(9, 8)))
	require.Equal(t, 1, e.a.qp.sq.used())
	var buf [16]verbs.WC
	n, err := e.a.cq.Poll(buf[:])
	require.NoError(t, err)
	ids, _ := statuses(buf[:n])
	require.Equal(t, []uint64{0, 1, 2, 3, 4}, ids)
	require.Equal(t, 1, e.a.qp.sq.used(), "the new one is under way still")
	e.until("completion", func() bool { return len(e.a.wcs) == 1 })
	require.EqualValues(t, 9, e.a.wcs[0].WRID)
	require.Zero(t, e.a.dev.Stats().Strays)
}

// With bounded queues a queue pair is refused that could overrun one.
func TestBoundCQs(t *testing.T) {
	lib := newLibrary(t, 1)
	d := openFake(t, lib, "fake0", func(c *Config) { c.BoundCQs = true })
	pd, err := d.AllocPD()
	require.NoError(t, err)
	c, err := d.CreateCQ(verbs.CQAttr{Depth: 40}) // of which the adapter makes 63
	require.NoError(t, err)
	attr := &verbs.QPInitAttr{SendCQ: c, RecvCQ: c, Type: verbs.QPTRC, Cap: smallCap} // 16 completions
	var pairs []verbs.QP
	for range 3 {
		q, err := pd.CreateQP(attr)
		require.NoError(t, err)
		pairs = append(pairs, q)
	}
	_, err = pd.CreateQP(attr)
	require.ErrorIs(t, err, ErrCQFull)
	require.NoError(t, pairs[0].Close())
	pairs[0], err = pd.CreateQP(attr)
	require.NoError(t, err, "room again")
	small := *attr
	small.Cap.MaxSendWR, small.Cap.MaxRecvWR = 1, 15
	_, err = pd.CreateQP(&small)
	require.ErrorIs(t, err, ErrCQFull, "one entry short")
	for _, q := range pairs {
		require.NoError(t, q.Close())
	}
	require.Zero(t, c.(*cq).reserved.Load())
	require.NoError(t, c.Close())
	require.NoError(t, pd.Close())
}

// The loops of a device share the completion vectors of the adapter, so that interrupts
// go to as many processors as it has vectors.
func TestCompletionVectors(t *testing.T) {
	lib := newLibrary(t, 1) // whose adapters have two
	d := openFake(t, lib, "fake0", func(c *Config) { c.Vectors = 5 })
	before := len(lib.Comps("fake0")) // the probe's
	for vector := range 5 {
		c, err := d.CreateCQ(verbs.CQAttr{Depth: 1, Vector: vector})
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	require.Equal(t, []int{0, 1, 0, 1, 0}, lib.Comps("fake0")[before:])
}

// A device that is gone cannot arm. Its loop sleeps all the same, and looks from
// time to time for what is completed without the library.
func TestArmFails(t *testing.T) {
	ctx, drv, c, pairs := newInstant(t, 1)
	ctx.fails = unix.EIO
	require.False(t, drv.Arm(), "the loop has to ask when to look again")
	now := time.Now()
	_, next := drv.Progress(now)
	require.Equal(t, now.Add(deafInterval), next)
	require.True(t, drv.Arm())
	require.NoError(t, pairs[0].PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled}))
	drv.Flush()
	require.False(t, drv.Arm())
	n, err := c.Poll(make([]verbs.WC, 4))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	ctx.fails = nil
	require.False(t, drv.Arm(), "it does not say when to look any more")
	_, next = drv.Progress(now)
	require.Zero(t, next)
	require.True(t, drv.Arm())
}
