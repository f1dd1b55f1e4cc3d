package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// modelBreak is the end of a connection that cannot go on: the first work
// request that fails says why, everything after it is flushed.
type modelBreak struct {
	why      verbs.WCStatus // the status that is expected
	orSilent bool           // RETRY_EXC will do too
	recv     verbs.WCStatus // of the receive that shows the error; success: none does
	failed   bool
}

// fail checks a completion with an error. Errors complete unsignaled work too.
func (e *modelEnd) fail(wc *verbs.WC) {
	t := e.t
	if wc.WRID&modelRecvID != 0 && e.broken.recv != verbs.WCSuccess && !e.broken.failed {
		require.Equal(t, e.broken.recv, wc.Status)
		e.recvs.take(wc.WRID)
		e.broken.failed = true
		return
	}
	if wc.WRID&modelRecvID != 0 {
		require.True(t, e.broken.failed || !e.oneCQ, "receives are flushed after the error")
		require.Equal(t, verbs.WCWRFlushErr, wc.Status)
		e.recvs.take(wc.WRID)
		return
	}
	i := 0
	if want := e.broken.why; !e.broken.failed {
		e.broken.failed = true
		if !e.broken.orSilent || wc.Status != verbs.WCRetryExcErr {
			require.Equal(t, want, wc.Status, "why the connection broke")
		}
		for ; i < len(e.sq) && e.sq[i].id != wc.WRID; i++ {
			require.False(t, e.sq[i].signaled, "work before the error completes")
		}
	} else {
		require.Equal(t, verbs.WCWRFlushErr, wc.Status)
	}
	require.Less(t, i, len(e.sq), "completion of %d, which is not posted", wc.WRID)
	require.Equal(t, e.sq[i].id, wc.WRID, "flushed in order")
	require.Equal(t, e.qp.Num(), wc.QPNum)
	for _, s := range e.sq[:i] {
		e.retire(s)
	}
	e.sq[i].want = nil // there is no result
	e.retire(e.sq[i])
	e.sq = e.sq[i+1:]
}

// When the network is gone for good the first work request that is under way
// ends with RETRY_EXC, the rest is flushed, and receives with it.
func TestModelRetryExhausted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.pauses, c.vectors = nil, 1
		m := newModel(t, c)
		e := m.connect([2]int{})
		for side := range e {
			attr := m.attr(side)
			require.Equal(t, attr.RetryCnt, e[side].qp.Query().RetryCnt)
		}
		for _, e := range e {
			e.broken = &modelBreak{why: verbs.WCRetryExcErr}
		}
		for range rapid.IntRange(1, 25).Draw(t, "work") {
			e[0].todo = append(e[0].todo, drawOp(t, c.mtu.Bytes(), modelOpcodes))
		}
		m.w.run(time.Duration(rapid.IntRange(0, 2000).Draw(t, "cut after"))*time.Microsecond, nil)
		way := rapid.IntRange(1, 3).Draw(t, "ways cut")
		for i := range e {
			if way>>i&1 != 0 {
				m.w.net.route(m.nodes[i].addr, m.nodes[1-i].addr).loss = 1
			}
		}
		start := m.w.net.now
		left := len(e[0].todo) + len(e[0].sq)
		m.w.must(time.Minute, "an error", func() bool { return e[0].broken.failed || len(e[0].todo)+len(e[0].sq) == 0 })
		if left > 0 && e[0].broken.failed {
			require.Less(t, m.w.net.now-start, 20*time.Second, "time until a dead peer is noticed")
			require.Equal(t, verbs.QPSErr, e[0].qp.State())
		}
		m.w.must(time.Minute, "the flush", func() bool { return len(e[0].sq)+len(e[0].todo) == 0 })
		m.w.run(time.Second, nil)
		if e[0].broken.failed {
			require.Empty(t, e[0].recvs.posted, "receives that were not flushed")
		}
		for _, e := range e {
			e.target.checkFrame(t)
			e.reads.checkFrame(t)
			e.recvs.slots.checkFrame(t)
		}
	})
}

// A receiver that never is ready is asked RNRRetry times more, each time not
// before the time it asked for.
func TestModelRNRExhausted(t *testing.T) {
	for retry := range uint8(7) {
		c := plainConfig()
		c.recvs = 3
		m := newModel(t, c)
		e := m.connectWith([2]int{}, func(_ int, a *verbs.QPAttr) { a.RNRRetry, a.MinRNRTimer = retry, 14 })
		e[0].broken = &modelBreak{why: verbs.WCRNRRetryExcErr}
		m.w.run(time.Millisecond, nil) // receives are posted
		e[1].recvs.deaf = true
		asked := m.countRNR(1)
		for i := range 6 {
			e[0].todo = append(e[0].todo, modelOp{op: verbs.WRSend, n: 700 * i, sges: 1, flags: verbs.SendSignaled})
		}
		start := m.w.net.now
		m.w.must(time.Minute, "the error", func() bool { return e[0].broken.failed })
		took := m.w.net.now - start
		require.GreaterOrEqual(t, took, time.Duration(retry)*verbs.RNRTimer(14))
		require.Less(t, took, (time.Duration(retry)+1)*verbs.RNRTimer(14)*2)
		m.w.must(time.Minute, "the flush", func() bool { return len(e[0].sq) == 0 })
		require.Equal(t, int(retry)+1, *asked)
		require.Equal(t, 3, e[0].finished, "three receives were there")
		require.Equal(t, verbs.QPSErr, e[0].qp.State())
		require.Equal(t, verbs.QPSRTS, e[1].qp.State(), "the receiver did nothing wrong")
	}
}

// With RNRRetry 7 the sender waits for ever.
func TestModelRNRForever(t *testing.T) {
	c := plainConfig()
	c.recvs = 1
	m := newModel(t, c)
	e := m.connectWith([2]int{}, func(_ int, a *verbs.QPAttr) { a.MinRNRTimer = 20 })
	m.w.run(time.Millisecond, nil)
	e[1].recvs.deaf = true
	for i := range 4 {
		e[0].todo = append(e[0].todo, modelOp{op: verbs.WRSend, n: 1500 * i, sges: 1})
	}
	require.False(t, m.w.run(20*time.Second, m.idle))
	require.Equal(t, verbs.QPSRTS, e[0].qp.State())
	e[1].recvs.deaf = false
	m.finish(time.Second)
}

// plainConfig is a run without faults.
func plainConfig() modelConfig {
	return modelConfig{
		seed: 1, vectors: 1, mtu: verbs.MTU1024, psn: [2]uint32{0xfffffe, 3}, recvs: 8, rdAtomic: 4, rnrTimer: 5, timeout: 11,
		cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2},
	}
}
