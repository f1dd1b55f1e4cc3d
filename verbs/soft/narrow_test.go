package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// TestPathBecomesNarrow: a connection whose packets the kernel refuses as too long fails at once, in the middle of
// what it sends. One whose packets are short goes on, and one that rests fails when it sends again.
func TestPathBecomesNarrow(t *testing.T) {
	for _, trains := range []bool{true, false} {
		g := newGuarded(t, true)
		g.talk()
		g.nodes[0].dev.cfg.NoOffload = !trains
		link := g.nodes[0].loops[0].link
		link.mtu = 600
		g.write(0, 100, g.mrs[1].RKey())
		g.must(time.Millisecond, "a short message", func() bool { return len(g.wcs[0]) == 1 })
		require.Equal(t, verbs.WCSuccess, g.wcs[0][0].Status)
		for range 32 {
			g.write(0, guardedSize, g.mrs[1].RKey())
		}
		g.must(time.Millisecond, "an error", func() bool { return len(g.wcs[0]) > 1 })
		require.Equal(t, verbs.WCRetryExcErr, g.wcs[0][1].Status)
		require.Equal(t, verbs.QPSErr, g.qps[0].State())
		g.must(time.Millisecond, "all have completed", func() bool { return len(g.wcs[0]) == 1+32+64 })
		for _, wc := range g.wcs[0][2:] {
			require.Equal(t, verbs.WCWRFlushErr, wc.Status)
		}
		require.Zero(t, g.nodes[0].dev.Stats().Retransmits)
		require.Equal(t, verbs.QPSRTS, g.qps[1].State(), "the other direction is not ours to judge")
	}
}

// TestNarrowForOthers: only connections to the host behind the narrow path, with packets as long, fail.
func TestNarrowForOthers(t *testing.T) {
	w := newSimWorld(t, 1)
	from, to, other := w.open("10.0.0.1"), w.open("10.0.0.2"), w.open("10.0.0.3")
	long := newBulk(from, to, bulkSize, 4, verbs.MTU1024, 0)
	short := newBulk(from, to, bulkSize, 4, verbs.MTU256, 0)
	away := newBulk(from, other, bulkSize, 4, verbs.MTU1024, 0)
	w.run(time.Millisecond, nil)
	tr := train{local: 0, dst: long.qp.(*qp).av.dst, size: 700, count: 1}
	v := from.loops[0].driver.(*driver).v
	long.idle = true // it has no more to say
	w.must(10*time.Millisecond, "a rest", func() bool { return long.qp.(*qp).sq.Idle() })
	v.narrow(&tr)
	w.run(time.Millisecond, nil)
	for _, b := range []*simBulk{long, short, away} {
		require.Equal(t, verbs.QPSRTS, b.qp.State())
	}
	require.NoError(t, long.qp.PostSend(&long.wr))
	v.narrow(&tr)
	require.True(t, long.qp.(*qp).narrow)
	require.False(t, short.qp.(*qp).narrow || away.qp.(*qp).narrow)
}
