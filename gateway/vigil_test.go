package gateway

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
)

// TestVigilAsksInSteps: one leg as long as all is well; when the peer is dead
// all of them soon, but not all at the first sign.
func TestVigilAsksInSteps(t *testing.T) {
	v := newVigil()
	require.Nil(t, v.lead(), "nobody to lead")
	byLeg := map[*wireControl]*carry{}
	for range 1000 {
		ctl := &wireControl{}
		c := &carry{f: &flow{ctl: ctl}}
		byLeg[ctl] = c
		v.watch(c)
	}
	leader := v.lead()
	require.NotNil(t, leader)
	for range 5 {
		require.Nil(t, v.lead(), "one is enough")
		require.Empty(t, v.step(), "nothing has happened")
	}
	for _, c := range byLeg { // a flow that was not asked is reset: nothing unusual
		if c != leader {
			require.False(t, v.lost(c, false))
			break
		}
	}
	require.Empty(t, v.step())

	require.True(t, v.lost(leader, false))
	left, steps := 998, []int{}
	for asked := v.step(); len(asked) > 0; asked = v.step() {
		steps = append(steps, len(asked))
		for i, leg := range asked {
			left--
			require.Equal(t, left > 0, v.lost(byLeg[leg], false), "step %d of %v", i, steps)
		}
	}
	require.Equal(t, []int{8, 64, 512, 414}, steps)
	require.Zero(t, left)
}

// TestVigilCalmsDown: the loss of a leader that was only reset costs eight
// questions, the next one as many.
func TestVigilCalmsDown(t *testing.T) {
	v := newVigil()
	for range 100 {
		v.watch(&carry{f: &flow{ctl: &wireControl{}}})
	}
	require.NotNil(t, v.lead())
	for range 3 {
		leader := v.leader
		require.True(t, v.lost(leader, false))
		require.Nil(t, v.leader)
		next := v.lead()
		require.NotSame(t, leader, next)
		require.Len(t, v.step(), vigilStep)
		require.Empty(t, v.step())
		require.Nil(t, v.lead())
	}
	leader := v.leader
	v.suspect()
	v.suspect()
	require.Len(t, v.step(), vigilStep, "a queue pair was not answered")
	v.unwatch(leader)
	require.NotNil(t, v.lead())
}

// TestVigilLeaderCarries: one at its end leads only where there is no other.
func TestVigilLeaderCarries(t *testing.T) {
	v := newVigil()
	enter := func(s State) *carry {
		c := &carry{f: &flow{ctl: &wireControl{}}}
		c.f.state.Store(uint32(s))
		v.watch(c)
		return c
	}
	ends := enter(StateClosing)
	require.Same(t, ends, v.lead())
	require.Nil(t, v.lead())
	carries := enter(StateCarrying)
	require.Same(t, carries, v.lead())
	require.Nil(t, v.lead())
}

// TestVigilSilence: behind a leader that was not answered for as long as anybody
// waits all others are asked, and calm returns.
func TestVigilSilence(t *testing.T) {
	v := newVigil()
	for range 1000 {
		v.watch(&carry{f: &flow{ctl: &wireControl{}}})
	}
	require.NotNil(t, v.lead())
	require.True(t, v.lost(v.leader, true))
	require.NotNil(t, v.lead())
	require.Len(t, v.step(), 999)
	require.Empty(t, v.step())
	require.Nil(t, v.lead())
	for c := range v.flows { // one of those asked
		require.True(t, v.lost(c, false))
		break
	}
	require.Len(t, v.step(), vigilStep)
}

// TestVigilEndsFlowsOfTheVanished: a peer whose host is gone for good leaves no
// flow behind, though none of them says anything.
func TestVigilEndsFlowsOfTheVanished(t *testing.T) {
	p := newGatewayPair(t)
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
	require.Equal(t, legPatience, time.Duration(count)*vigilTurn)

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
