package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVigilAsksInSteps: one leg a turn as long as all is well; when the peer is
// dead all of them soon, but not all at the first sign.
func TestVigilAsksInSteps(t *testing.T) {
	v := newVigil()
	byLeg := map[*wireControl]*carry{}
	for range 1000 {
		ctl := &wireControl{}
		c := &carry{f: &flow{ctl: ctl}}
		byLeg[ctl] = c
		v.watch(c)
	}
	for range 5 {
		require.Len(t, v.ask(true), 1)
		require.Empty(t, v.ask(false), "nothing has happened")
	}
	asked := v.ask(true)
	for leg, c := range byLeg { // a flow that was not asked is reset: nothing unusual
		if leg != asked[0] {
			require.False(t, v.lost(c))
			break
		}
	}
	require.Len(t, v.ask(true), 1)

	left, steps := 999, []int{}
	for asked = v.ask(true); len(asked) > 0; asked = v.ask(false) {
		steps = append(steps, len(asked))
		for i, leg := range asked {
			left--
			require.Equal(t, left > 0, v.lost(byLeg[leg]), "step %d of %v", i, steps)
		}
	}
	require.Equal(t, []int{1, 8, 64, 512, 414}, steps)
	require.Zero(t, left)

	c := &carry{f: &flow{ctl: &wireControl{}}}
	v.watch(c)
	require.Len(t, v.ask(true), 1)
	v.unwatch(c)
	require.Empty(t, v.ask(true))
}
