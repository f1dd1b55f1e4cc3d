package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
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
