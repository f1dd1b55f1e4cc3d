package soft

import (
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
