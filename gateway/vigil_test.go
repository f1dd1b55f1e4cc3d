package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"
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
			require.False(t, v.lost(c))
			break
		}
	}
	require.Empty(t, v.step())

	require.True(t, v.lost(leader))
	left, steps := 998, []int{}
	for asked := v.step(); len(asked) > 0; asked = v.step() {
		steps = append(steps, len(asked))
		for i, leg := range asked {
			left--
			require.Equal(t, left > 0, v.lost(byLeg[leg]), "step %d of %v", i, steps)
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
		require.True(t, v.lost(leader))
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
