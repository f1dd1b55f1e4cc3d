package carrier

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeLeg is the leg of a connection that is about to end, or not.
type fakeLeg struct{ ending bool }

func (l *fakeLeg) Ending() bool               { return l.ending }
func (*fakeLeg) KeepAlive(time.Duration, int) {}
func (*fakeLeg) Ask()                         {}

// watched is a leg that is watched.
func watched(ending bool) WireLeg { return &fakeLeg{ending} }

// TestPeerKeepaliveAsksInSteps: one leg as long as all is well; when the peer is dead
// all of them soon, but not all at the first sign.
func TestPeerKeepaliveAsksInSteps(t *testing.T) {
	v := newKeepalive()
	require.Nil(t, v.lead(), "nobody to lead")
	for range 1000 {
		v.watch(watched(false))
	}
	leader := v.lead()
	require.NotNil(t, leader)
	for range 5 {
		require.Nil(t, v.lead(), "one is enough")
		require.Empty(t, v.step(), "nothing has happened")
	}
	for c := range v.flows { // a flow that was not asked is reset: nothing unusual
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
		for i, l := range asked {
			left--
			require.Equal(t, left > 0, v.lost(l, false), "step %d of %v", i, steps)
		}
	}
	require.Equal(t, []int{8, 64, 512, 414}, steps)
	require.Zero(t, left)
}

// TestPeerKeepaliveCalmsDown: the loss of a leader that was only reset costs eight
// questions, the next one as many.
func TestPeerKeepaliveCalmsDown(t *testing.T) {
	v := newKeepalive()
	for range 100 {
		v.watch(watched(false))
	}
	require.NotNil(t, v.lead())
	for range 3 {
		leader := v.leader
		require.True(t, v.lost(leader, false))
		require.Nil(t, v.leader)
		next := v.lead()
		require.NotSame(t, leader, next)
		require.Len(t, v.step(), keepaliveStep)
		require.Empty(t, v.step())
		require.Nil(t, v.lead())
	}
	leader := v.leader
	v.suspect()
	v.suspect()
	require.Len(t, v.step(), keepaliveStep, "a queue pair was not answered")
	v.unwatch(leader)
	require.NotNil(t, v.lead())
}

// TestPeerKeepaliveLeaderCarries: one at its end leads only where there is no other.
func TestPeerKeepaliveLeaderCarries(t *testing.T) {
	v := newKeepalive()
	enter := func(ending bool) WireLeg {
		l := watched(ending)
		v.watch(l)
		return l
	}
	ends := enter(true)
	require.Same(t, ends, v.lead())
	require.Nil(t, v.lead())
	carries := enter(false)
	require.Same(t, carries, v.lead())
	require.Nil(t, v.lead())
}

// TestPeerKeepaliveSilence: after a leader that was not answered for
// LegPatience all others are asked, and calm returns.
func TestPeerKeepaliveSilence(t *testing.T) {
	v := newKeepalive()
	for range 1000 {
		v.watch(watched(false))
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
	require.Len(t, v.step(), keepaliveStep)
}
