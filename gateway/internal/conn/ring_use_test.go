package conn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// TestRingUse: what an application does not take is seen in its ring at the next look, and
// what is on the way to it at the sender.
func TestRingUse(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			p := newPair(t)
			a, b := newFakeWires(1<<20, 1<<20)
			c := p.dial(t, kind, a, b)
			require.NoError(t, c.app[0].SetWriteDeadline(time.Now().Add(patience)))
			sent := make(chan error, 1)
			go func() {
				_, err := c.app[0].Write(make([]byte, 32<<20)) // more than rings and socket buffers hold
				sent <- err
			}()
			by := report.Carrier(kind.String())
			var to, from report.RingUse
			require.Eventuallyf(t, func() bool {
				for _, g := range c.p.g {
					lookForStalls(g.all(), time.Hour)
				}
				to, from = p.g[1].snapshot().Rings[by], p.g[0].snapshot().Rings[by]
				return to.Size > 0 && to.Waiting > 0 && to.Waiting <= to.Size && from.Size > 0 && from.Unacknowledged > 0
			}, patience, 10*time.Millisecond, "to %+v, from %+v", &to, &from)
			require.NoError(t, c.app[0].Close())
			<-sent
			c.closeApps()
			require.Eventually(t, func() bool { return len(p.g[0].snapshot().Rings)+len(p.g[1].snapshot().Rings) == 0 }, patience, 10*time.Millisecond)
			for _, s := range p.g { // a connection leaves its ring before its duration is counted
				require.Eventually(t, func() bool { return s.snapshot().Durations[by].Count == 1 }, patience, 10*time.Millisecond)
			}
			c.over(t)
		})
	}
}
