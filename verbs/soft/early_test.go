package soft

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// TestReorderedPath: packets out of order cost next to nothing, and are not taken for lost.
func TestReorderedPath(t *testing.T) {
	for _, share := range []float64{0.01, 0.25} {
		for _, guarded := range []bool{false, true} {
			d := newDumbbell(t, 5, 1, gigabit)
			d.left[0].slack, d.right[0].slack = time.Millisecond, time.Millisecond
			way := d.net.route(d.left[0].addr, d.right[0].addr)
			way.reorder, way.late = share, time.Millisecond
			b := newBulkOf(d.left[0], d.right[0], bulkSize, 64, verbs.MTU1024, 0, func(qps [2]verbs.QP) {
				if guarded {
					protect(t, qps, true)
				}
			})
			d.run(200*time.Millisecond, nil)
			before := d.left[0].dev.Stats().Retransmits
			s := d.during(300*time.Millisecond, &b.bytes)[0]
			again := d.left[0].dev.Stats().Retransmits - before
			t.Logf("%v of the packets up to 1 ms late: %.2f of the line, %d sent again", share, s, again)
			require.Greater(t, s, 0.6)
			require.Less(t, again, uint64(d.net.stats.sent/100))
			require.NotZero(t, d.right[0].dev.Stats().Early)
		}
	}
}

// TestLateIsLearned: missing packets are asked for at once, and waited for from when one was only late. That is
// forgotten once many were really lost.
func TestLateIsLearned(t *testing.T) {
	g := newGuarded(t, true)
	g.talk()
	way, q := g.net.route(g.nodes[0].addr, g.nodes[1].addr), g.qps[1]
	// send sends a message whose first packet is lost, or comes so late, and returns how often it was asked for.
	send := func(late time.Duration) uint64 {
		before := g.nodes[1].dev.Stats().SentNAKs
		g.wcs[0] = nil
		way.tap = func(src netip.AddrPort, data []byte) simVerdict {
			way.tap = nil
			if late > 0 {
				g.net.after(late, func() { g.net.arrive(src, simSocket(g.nodes[1]), false, data) })
			}
			return simDrop
		}
		g.write(0, 8<<10, g.mrs[1].RKey())
		g.must(100*time.Millisecond, "done", func() bool { return len(g.wcs[0]) == 1 })
		g.run(time.Millisecond, nil)
		require.Equal(t, verbs.WCSuccess, g.wcs[0][0].Status)
		require.Zero(t, q.resp.early.kept)
		return g.nodes[1].dev.Stats().SentNAKs - before
	}
	require.EqualValues(t, 1, send(0))
	require.EqualValues(t, 1, send(100*time.Microsecond))
	require.NotZero(t, q.resp.early.wait)
	for tries := 0; send(100*time.Microsecond) > 0; tries++ {
		require.Less(t, tries, 4)
	}
	for range forgetsAfter + 2 {
		require.EqualValues(t, 1, send(0))
	}
	require.Zero(t, q.resp.early.wait)
	require.Equal(t, g.mrs[0].Bytes()[:8<<10], g.mrs[1].Bytes()[:8<<10])
}

// TestEarlyIsBounded: a queue pair keeps so many packets, a vector so many of so many queue pairs, and nothing when they
// have ended.
func TestEarlyIsBounded(t *testing.T) {
	h := newHostile(t, 1)
	in := h.qps[0].QP.(*qp)
	p := &in.vec.early
	in.resp.early.wait = int64(time.Hour)
	ahead := func(n int) {
		hdr := wire.Header{Opcode: wire.RCWriteOnly, PSN: wire.PSNAdd(hostilePSN, n), VA: h.granted.addr(0), RKey: h.granted.RKey(), Length: 256}
		h.peerPacket(h.qps[0], hdr, make([]byte, 256))
	}
	for i := earlyPackets - 1; i > 0; i-- {
		ahead(i)
		ahead(i)
	}
	require.Equal(t, earlyPackets-1, in.resp.early.kept)
	require.Equal(t, earlyPackets-1, p.made)
	require.EqualValues(t, earlyPackets-1, h.dev.dev.Stats().Early)
	require.Zero(t, h.dev.dev.Stats().SentNAKs)
	ahead(earlyPackets) // no room: the missing one is asked for
	require.EqualValues(t, 1, h.dev.dev.Stats().SentNAKs)
	require.Zero(t, in.resp.early.kept)
	require.Len(t, p.unused, p.rings)
	require.Len(t, p.free, earlySpare)

	in.resp.nakked = false
	ahead(1)
	require.Equal(t, 1, in.resp.early.kept)
	require.NoError(t, in.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	require.Zero(t, in.resp.early.kept)
	require.Len(t, p.unused, p.rings)

	pool := earlyPool{mtu: 4096}
	for range earlyBytes / 4096 {
		require.NotNil(t, pool.packet())
	}
	require.Nil(t, pool.packet())
	for range earlyPairs {
		require.NotNil(t, pool.ring())
	}
	require.Nil(t, pool.ring())
}
