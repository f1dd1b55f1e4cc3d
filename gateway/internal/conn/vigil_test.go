package conn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/negotiate"
)

// TestVigilEndsFlowsOfTheVanished: a peer whose host is gone for good leaves no
// flow behind, though none of them says anything.
func TestVigilEndsFlowsOfTheVanished(t *testing.T) {
	p := newPair(t)
	conns := make([]*pairConn, 30)
	for i := range conns {
		conns[i] = p.dial(t, negotiate.CarrierSoft)
	}
	var leader *fakeWire
	require.Eventually(t, func() bool {
		for _, c := range conns {
			if kept, _ := c.wire[0].asks(); kept {
				leader = c.wire[0]
			}
		}
		return leader != nil
	}, patience, 10*time.Millisecond, "nobody asks")
	_, count := leader.asks()
	require.Equal(t, carrier.LegPatience, time.Duration(count)*carrier.VigilTurn)

	leader.fallSilent()
	asked := func() (n int) {
		for _, c := range conns {
			if written, _ := c.wire[0].Vitals(); written > 0 {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return asked() == len(conns)-1 }, patience, 10*time.Millisecond, "all others are asked")
	for _, c := range conns {
		c.wire[0].fallSilent()
	}
	for _, c := range conns {
		c.over(t)
		c.closeApps()
	}
	p.empty(t)
}
