package soft

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// A peer that does not run for a while is no sign of congestion: the timer
// sends one packet, and when the peer is back everything goes on as before.
func TestTimeoutForNothing(t *testing.T) {
	for _, long := range []time.Duration{18 * time.Millisecond, 60 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(long.String(), func(t *testing.T) {
			d := newDumbbell(t, 3, 1, gigabit)
			b := newBulk(d.left[0], d.right[0], bulkSize, bulkDepth, verbs.MTU1024, 0)
			d.run(500*time.Millisecond, nil)
			for q := b.qp.(*qp); q.next() != q.req.high; { // nothing of before is sent again now
				d.run(100*time.Microsecond, nil)
			}
			before := d.left[0].dev.Stats()
			window := b.qp.(*qp).req.cc.window
			d.right[0].paused = d.net.now + long
			d.run(long+2*time.Millisecond, nil)
			after := d.left[0].dev.Stats()
			timeouts := after.Timeouts - before.Timeouts
			require.NotZero(t, timeouts)
			require.LessOrEqual(t, after.Retransmits-before.Retransmits, timeouts)
			require.GreaterOrEqual(t, b.qp.(*qp).req.cc.window, window)
			require.Greater(t, d.during(100*time.Millisecond, &b.bytes)[0], 0.8)
		})
	}
}

// A loss of everything under way is congestion: what the peer does not have is
// all sent again, and more slowly.
func TestTimeoutForLoss(t *testing.T) {
	d := newDumbbell(t, 4, 1, gigabit)
	b := newBulk(d.left[0], d.right[0], bulkSize, bulkDepth, verbs.MTU1024, 0)
	d.run(500*time.Millisecond, nil)
	before := d.left[0].dev.Stats()
	window := b.qp.(*qp).req.cc.window
	way := d.net.route(d.left[0].addr, d.right[0].addr)
	loss := way.loss
	way.loss = 1
	d.run(2*time.Millisecond, nil)
	way.loss = loss
	bytes := b.bytes
	d.run(15*time.Millisecond, nil)
	after := d.left[0].dev.Stats()
	require.EqualValues(t, 1, after.Timeouts-before.Timeouts)
	require.Greater(t, after.Retransmits-before.Retransmits, uint64(8))
	require.Greater(t, b.bytes, bytes)
	require.Less(t, b.qp.(*qp).req.cc.window, window)
}

// Timeouts in a row make the window small, but its threshold is that of the first one: when the network is back, the
// stream is soon as fast as half of what it was.
func TestTimeoutsInRow(t *testing.T) {
	const rtt = 20 * time.Millisecond
	d := newDumbbell(t, 5, 1, simLine{rate: 125e6, rtt: rtt, queue: 8 << 20})
	b := newBulk(d.left[0], d.right[0], bulkSize, 25, verbs.MTU1024, 0)
	d.run(2*time.Second, nil)
	way := d.net.route(d.left[0].addr, d.right[0].addr)
	way.loss = 1
	d.run(200*time.Millisecond, nil)
	way.loss = 0
	q := b.qp.(*qp)
	una, high := q.req.una, q.req.high
	require.Greater(t, q.req.timeouts, 2)
	require.Greater(t, wire.PSNDiff(high, una), int32(1000))
	d.must(time.Second, "an answer", func() bool { return q.req.una != una })
	d.must(15*rtt, "recovery", func() bool { return wire.PSNDiff(q.req.una, high) >= 0 })
}

// On a path that becomes longer than the timer, answers to what was sent before the timer expired come after it. They
// prove that this was not lost, and no more: what was really lost is all sent again, and at a growing rate.
func TestTimeoutOnLongerPath(t *testing.T) {
	const short, long = 20 * time.Millisecond, 200 * time.Millisecond
	for _, lost := range []string{"nothing", "a packet", "everything"} {
		t.Run(lost, func(t *testing.T) {
			d := newDumbbell(t, 5, 1, simLine{rate: 125e6, rtt: short, queue: 8 << 20})
			b := newBulk(d.left[0], d.right[0], bulkSize, 25, verbs.MTU1024, 0)
			d.run(2*time.Second, nil)
			q, before := b.qp.(*qp), d.left[0].dev.Stats()
			way, back := d.net.route(d.left[0].addr, d.right[0].addr), d.net.route(d.right[0].addr, d.left[0].addr)
			switch lost {
			case "a packet":
				way.tap = func(netip.AddrPort, []byte) simVerdict { way.tap = nil; return simDrop }
			case "everything":
				way.loss = 1
				d.run(2*short, nil) // until no answer is under way
				way.loss = 0
			}
			require.Less(t, q.req.rtt.timer(q.ackTimeout()), int64(long)/2)
			way.delay, back.delay = long/2, long/2
			d.run(2*short, nil)
			una, high, start := q.req.una, q.req.high, d.net.now
			require.Greater(t, wire.PSNDiff(high, una), int32(1000))
			d.must(15*long, "recovery", func() bool { return wire.PSNDiff(q.req.una, high) >= 0 })
			after := d.left[0].dev.Stats()
			timeouts, again := after.Timeouts-before.Timeouts, after.Retransmits-before.Retransmits
			t.Logf("%d packets in %v, %d timeouts, %d sent again", wire.PSNDiff(high, una), d.net.now-start, timeouts, again)
			require.NotZero(t, timeouts)
			if lost == "nothing" {
				require.Less(t, again, uint64(64))
			}
		})
	}
}

// A connection whose path has become much longer since the last one, or is longer than its first timer, measures that,
// takes nothing for lost, and begins as fast as on any path of that length.
func TestTimeoutOnNewConnection(t *testing.T) {
	for _, long := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond, 900 * time.Millisecond} {
		for _, measured := range []bool{false, true} {
			for size, least := range map[int]int{4 << 10: 9, 64 << 10: 5} { // ringfuls in 12 round trips
				t.Run(fmt.Sprint(long, measured, size), func(t *testing.T) {
					d := newDumbbell(t, 7, 1, simLine{rate: 125e6, rtt: 100 * time.Microsecond, queue: 8 << 20})
					if measured {
						before := newBulk(d.left[0], d.right[0], size, bulkDepth, verbs.MTU1024, 0)
						d.run(5*time.Millisecond, nil)
						before.idle = true
						d.run(5*time.Millisecond, nil)
					}
					d.wire(d.net.route(d.left[0].addr, d.right[0].addr), d.net.route(d.right[0].addr, d.left[0].addr), long)
					b := newBulk(d.left[0], d.right[0], size, bulkDepth, verbs.MTU1024, 0)
					q := b.qp.(*qp)
					q.attr.Timeout, q.attr.RetryCnt = 16, 5
					require.Equal(t, measured, q.req.rtt.srtt != 0)
					d.run(12*long, nil)
					require.GreaterOrEqual(t, b.bytes, least*size*bulkDepth)
					require.InDelta(t, long, time.Duration(q.req.rtt.srtt), float64(long)/10)
				})
			}
		}
	}
}

// A READ that was sent again may be answered while pacing delays sending it once more. That proves nothing either.
func TestTimeoutOfRead(t *testing.T) {
	const short, long = 20 * time.Millisecond, 200 * time.Millisecond
	d := newDumbbell(t, 5, 1, simLine{rate: 125e6, rtt: short, queue: 8 << 20})
	b := newBulk(d.right[0], d.left[0], bulkSize, 25, verbs.MTU1024, 0)
	b.wr.Opcode = verbs.WRRDMARead
	d.run(2*time.Second, nil)
	q := b.qp.(*qp)
	d.must(short, "a READ", func() bool { return wire.PSNDiff(q.req.high, q.req.una) == 64 })
	way, back := d.net.route(d.left[0].addr, d.right[0].addr), d.net.route(d.right[0].addr, d.left[0].addr)
	way.loss, back.loss = 1, 1
	d.run(2*short, nil)
	way.loss, back.loss = 0, 0
	way.delay, back.delay = long/2, long/2
	una := q.req.una
	d.must(3*long, "an answer", func() bool { return q.req.una != una })
	require.Greater(t, wire.PSNDiff(q.req.high, q.req.una), int32(32))
	require.Less(t, q.req.cc.packets(), 8)
}
