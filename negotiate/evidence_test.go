package negotiate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUndone(t *testing.T) {
	var p CachePolicy
	for _, r := range Reasons() {
		remembered := p.ScopeOf(r) != ScopeNone
		require.True(t, p.Undone(r, true), r)
		require.True(t, remembered || !p.Undone(r, false), r)
		if p.ScopeOf(r) == ScopePeer {
			require.True(t, p.Undone(r, false), "%v: a carried connection is proof for the whole address", r)
		}
	}
	for _, r := range []Reason{ReasonHandshakeTimeout, ReasonDrained, ReasonVersion, ReasonAcceptLost} {
		require.True(t, p.Undone(r, false), r)
	}
	for _, r := range []Reason{ReasonAppRefused, ReasonAppUnreachable, ReasonPolicy, ReasonNoMemory, ReasonFlowLimit, ReasonRateLimit, Reason(200)} {
		require.False(t, p.Undone(r, false), r)
	}
}

// Connections that fail while a key rests began before that: they are one event.
func TestCacheTogether(t *testing.T) {
	var p CachePolicy
	now := time.Unix(1e9, 0)
	first := p.Next(Strike{}, ReasonAppRefused, now)
	s := first
	for i := range 60 {
		s = p.Next(s, ReasonAppRefused, now.Add(time.Duration(i)*time.Millisecond))
	}
	require.Equal(t, first, s)
	require.Equal(t, 2, p.Next(s, ReasonAppRefused, s.Until).Count)
}

// A gateway that answers too late rests for seconds: it may be stopped, or busy.
func TestCacheLate(t *testing.T) {
	var p CachePolicy
	require.Equal(t, 5*time.Second, p.TTL(ReasonHandshakeTimeout, 1))
	require.Equal(t, 10*time.Second, p.TTL(ReasonHandshakeTimeout, 2))
	require.Equal(t, 10*time.Minute, p.TTL(ReasonHandshakeTimeout, 20))
}
