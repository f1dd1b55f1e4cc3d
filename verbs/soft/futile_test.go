package soft

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// TestFutile: a protected queue pair gives up within seconds on a path that loses so much that TCP must be better, also
// one way only; not on one that loses less, reorders, or is silent for a while. Others follow the standard.
func TestFutile(t *testing.T) {
	for _, c := range []struct {
		faults           simFaults
		rtt              time.Duration
		pause            time.Duration
		unguarded, fails bool
	}{
		{faults: simFaults{loss: 0.25}, rtt: 200 * time.Microsecond, fails: true},
		{faults: simFaults{loss: 0.25}, rtt: 20 * time.Millisecond, fails: true},
		{faults: simFaults{loss: 0.25}, rtt: 200 * time.Microsecond, unguarded: true},
		{faults: simFaults{loss: 0.05}, rtt: 200 * time.Microsecond},
		{faults: simFaults{loss: 0.05}, rtt: 20 * time.Millisecond},
		{faults: simFaults{reorder: 0.25, late: 10 * time.Millisecond}, rtt: 200 * time.Microsecond},
		{rtt: 20 * time.Millisecond, pause: 1900 * time.Millisecond},
		{rtt: 200 * time.Microsecond, pause: 1100 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			line := gigabit
			line.rtt = c.rtt
			d := newDumbbell(t, 5, 1, line)
			way := d.net.route(d.left[0].addr, d.right[0].addr)
			way.simFaults = c.faults
			b := newBulkOf(d.left[0], d.right[0], bulkSize, bulkDepth, verbs.MTU1024, 0, func(qps [2]verbs.QP) {
				if !c.unguarded {
					protect(t, qps, true)
				}
			})
			q := b.qp.(*qp)
			q.attr.Timeout, q.attr.RetryCnt = 16, 5
			if c.fails { // a bulk transfer must not fail
				d.left[0].loops[0].turn = nil
				for range bulkDepth {
					require.NoError(t, b.qp.PostSend(&b.wr))
				}
				turn := func() bool {
					for q.state == verbs.QPSRTS && q.sq.Held() < bulkDepth {
						require.NoError(t, b.qp.PostSend(&b.wr))
					}
					var wcs [16]verbs.WC
					n, err := q.scq.Poll(wcs[:])
					require.NoError(t, err)
					return n > 0
				}
				d.left[0].loops[0].turn = append(d.left[0].loops[0].turn, turn)
				d.must(6*time.Second, "it gives up", func() bool { return q.state == verbs.QPSErr })
				return
			}
			for range 3 {
				d.run(time.Second, nil)
				if c.pause > 0 {
					way.loss = 1
					d.run(c.pause, nil)
					way.loss = 0
				}
			}
			d.run(2*time.Second, nil)
			require.Equal(t, verbs.QPSRTS, q.state)
		})
	}
}
