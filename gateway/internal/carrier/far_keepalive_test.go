package carrier

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
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

// TestPathMTU: a path is as wide as the device, the route and the last failed
// proof say.
func TestPathMTU(t *testing.T) {
	here, now := netip.MustParseAddr("127.0.0.1"), time.Now()
	var p pathMTU
	require.Equal(t, verbs.MTU2048, p.mtu(verbs.MTU2048, here, now), "the device")
	p.kernel.Store(uint32(verbs.MTU512))
	require.Equal(t, verbs.MTU512, p.mtu(verbs.MTU4096, here, now.Add(mtuAsked/2)), "the kernel, as of a moment ago")
	require.Equal(t, verbs.MTU4096, p.mtu(verbs.MTU4096, here, now.Add(mtuAsked)), "as of now")
	p.kernel.Store(uint32(verbs.MTU512))
	p.failed()
	require.Equal(t, verbs.MTU4096, p.mtu(verbs.MTU4096, here, now.Add(mtuAsked)), "asked again after a failure")
	p.unproved(now)
	require.Equal(t, verbs.MTU1024, p.mtu(verbs.MTU4096, here, now.Add(mtuNarrow-1)))
	require.Equal(t, verbs.MTU512, p.mtu(verbs.MTU512, here, now))
	require.Equal(t, verbs.MTU4096, p.mtu(verbs.MTU4096, here, now.Add(mtuNarrow)), "it may have been repaired")
}

// Reads of a flow over a network fill the grants of its ring, and the last packet
// of each has room for the immediate within a path MTU.
func TestFarReadsFillGrantsAndTrains(t *testing.T) {
	t.Parallel()
	const parts, immediate = 8, 4 // of the ring that are granted by themselves; bytes
	require.Zero(t, farRing%parts)
	require.Zero(t, farReadCap%(farRing/parts))
	require.Zero(t, farRing%farReadCap)
	for _, mtu := range []verbs.MTU{verbs.MTU512, verbs.MTU1024, verbs.MTU2048, verbs.MTU4096} {
		last := farReadCap % mtu.Bytes()
		require.Positive(t, last)
		require.LessOrEqual(t, last+immediate, mtu.Bytes())
	}
}
