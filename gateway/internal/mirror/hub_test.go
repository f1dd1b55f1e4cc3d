package mirror_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/mirror"
	"github.com/smcgw/smcgw/inprocess"
)

// TestBell: an end at which nothing happens is left with its bell, which is rung once for each value of arm; while it is hot
// its shard looks by itself, and asks for the bell before it sleeps only.
func TestBell(t *testing.T) {
	s, err := loop.New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	m := &loop.Manual{Shard: s}
	hub := mirror.NewHub(s)
	o := newOwner(t)
	e, files, err := mirror.New(mirror.Config{Order: inprocess.OrderMin, Hub: hub, Owner: o})
	require.NoError(t, err)
	l := newLibrary(t, files, inprocess.OrderMin, -1, nil)
	defer l.close()
	defer s.CloseFDs()
	arm := func() uint32 { return word32(l.mirror, inprocess.EndArm).Load() }
	say := func(flags uint32, bells uint64) {
		t.Helper()
		word32(l.own, inprocess.EndFlags).Store(flags)
		l.ringBell()
		l.ringBell()
		require.Equal(t, bells, e.Bells())
	}
	now := time.Now()
	turn := func(d time.Duration) {
		now = now.Add(d)
		m.Step(now)
	}

	turn(0)
	turn(time.Microsecond)
	require.Zero(t, arm(), "it is looked at")
	say(inprocess.Attached, 0)
	turn(time.Microsecond)
	require.Equal(t, uint32(inprocess.Attached), expect(t, o.said, "attached").Flags)

	require.True(t, hub.Arm(), "the shard may sleep")
	first := arm()
	require.Equal(t, uint32(inprocess.ArmSelf), first&0xff)
	hub.Disarm()
	require.Zero(t, arm())
	word32(l.own, inprocess.EndFlags).Store(0)
	require.True(t, hub.Ready())
	require.False(t, hub.Arm(), "it has something to do")
	require.Zero(t, arm())
	turn(time.Microsecond)
	expect(t, o.said, "no flag")

	turn(time.Second)
	cold := arm()
	require.NotZero(t, cold)
	require.NotEqual(t, first, cold)
	turn(time.Second)
	require.True(t, hub.Arm())
	hub.Disarm()
	require.Equal(t, cold, arm(), "it is left alone")
	say(inprocess.Recall, 0)
	turn(time.Second)
	require.Equal(t, uint64(1), e.Bells())
	turn(0)
	require.Equal(t, uint32(inprocess.Recall), expect(t, o.said, "recall").Flags)
	require.Zero(t, arm(), "it is hot again")

	e.ProcessEnded()
	word32(l.own, inprocess.EndFlags).Store(0)
	turn(0)
	require.False(t, hub.Ready(), "there is no library any more")

	e.Close(func() {})
	turn(0)
	require.Equal(t, uint32(inprocess.Gone), l.flags())
	require.True(t, hub.Arm())
	s.Halt()
	hub.Stop()
}

// TestNoSuchEnd: rings have the sizes of the protocol.
func TestNoSuchEnd(t *testing.T) {
	for _, cfg := range []mirror.Config{{Order: inprocess.OrderMin - 1}, {Order: inprocess.OrderMax + 1}, {Order: inprocess.OrderMin, Side: 2}} {
		_, _, err := mirror.New(cfg)
		require.ErrorIs(t, err, mirror.ErrNonsense)
	}
}
