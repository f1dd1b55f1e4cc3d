package negotiate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCacheScope(t *testing.T) {
	var p CachePolicy
	for _, r := range []Reason{ReasonAcceptLost, ReasonCarrierUnreachable} {
		require.Equal(t, ScopePeer, p.ScopeOf(r), r)
	}
	for _, r := range []Reason{
		ReasonAppRefused, ReasonAppUnreachable, ReasonNoMemory, ReasonFlowLimit, ReasonVersion, ReasonPolicy,
		ReasonNoCommonCarrier, ReasonNAT, ReasonHandshakeTimeout, ReasonAuthFailed, ReasonProtocolError, Reason(200),
	} {
		require.Equal(t, ScopeService, p.ScopeOf(r), r)
	}
	for _, r := range []Reason{
		ReasonNone, ReasonSYNOptions, ReasonPeerNoOption, ReasonOptionBlackholed, ReasonLostBytes, ReasonGatewayStale,
	} {
		require.Equal(t, ScopeNone, p.ScopeOf(r), r)
		require.Zero(t, p.TTL(r, 1), r)
	}
}

func TestCacheTTL(t *testing.T) {
	p := CachePolicy{NegativeTTL: 10 * time.Minute}
	require.Equal(t, p.TTL(ReasonVersion, 7), CachePolicy{}.TTL(ReasonVersion, 7), "defaults")
	for count, want := range map[int]time.Duration{
		-1: 30 * time.Second, 0: 30 * time.Second, 1: 30 * time.Second, 2: time.Minute, 5: 8 * time.Minute, 6: 10 * time.Minute, 1 << 40: 10 * time.Minute,
	} {
		require.Equal(t, want, p.TTL(ReasonAppRefused, count), "refused %d times", count)
	}
	for _, late := range []Reason{ReasonHandshakeTimeout, ReasonCarrierUnreachable} {
		require.Equal(t, 5*time.Second, p.TTL(late, 1))
		require.Equal(t, 10*time.Minute, p.TTL(late, 8))
	}
	require.Equal(t, 10*time.Minute, p.TTL(ReasonNoCommonCarrier, 1))
	require.Equal(t, 10*time.Minute, p.TTL(Reason(201), 3))
}

func TestCacheBackOffStartsAnew(t *testing.T) {
	var p CachePolicy
	now := time.Unix(1e9, 0)
	s := p.Next(Strike{}, ReasonAppRefused, now)
	require.Equal(t, Strike{Reason: ReasonAppRefused, Count: 1, Until: now.Add(30 * time.Second), TTL: 30 * time.Second}, s)
	require.True(t, s.Active(now))
	require.False(t, s.Active(s.Until))

	soon := s.Until.Add(time.Second)
	require.Equal(t, 2, p.Next(s, ReasonAppRefused, soon).Count)
	require.Equal(t, 1, p.Next(s, ReasonAcceptLost, soon).Count, "other reason")
	require.Equal(t, 1, p.Next(s, ReasonAppRefused, s.Until.Add(s.TTL)).Count, "good for as long")
	require.False(t, Strike{}.Active(now))
}

func TestCacheRemembers(t *testing.T) {
	var p CachePolicy
	yes := []Verdict{
		{Outcome: OutcomeReleased, Reason: ReasonAppRefused, Remote: true},
		{Outcome: OutcomeReleased, Reason: ReasonHandshakeTimeout, Waited: askTime},
		{Outcome: OutcomeReleased, Reason: ReasonProtocolError, Shown: true},
		{Outcome: OutcomeReleased, Reason: ReasonWireReset, Remote: true},
		{Outcome: OutcomeRaw, Reason: ReasonAcceptLost, Shown: true},
		{Outcome: OutcomeAborted, Reason: ReasonAcceptLost, Shown: true},
		{Outcome: OutcomeCarried, Reason: ReasonCarrierUnreachable, Waited: minProofTimeout},
	}
	no := []Verdict{
		{},
		{Outcome: OutcomeCarried, Carrier: CarrierSHM},
		{Outcome: OutcomeCarried, Reason: ReasonCarrierUnreachable, Remote: true},
		{Outcome: OutcomeReleased, Reason: ReasonHandshakeTimeout}, // nothing shows whose time it was
		{Outcome: OutcomeReleased, Reason: ReasonProtocolError},
		{Outcome: OutcomeRaw, Reason: ReasonAcceptLost},
		{Outcome: OutcomeCarried, Reason: ReasonCarrierUnreachable},
		{Outcome: OutcomeReleased, Reason: ReasonProposalLate, Remote: true},
		{Outcome: OutcomeReleased, Reason: ReasonClientGone, Remote: true},
		{Outcome: OutcomeReleased, Reason: ReasonClientGone},
		{Outcome: OutcomeReleased, Reason: ReasonDrained},
		{Outcome: OutcomeReleased, Reason: ReasonNoMemory}, // what this host lacks is no fact about the peer
		{Outcome: OutcomeReleased, Reason: ReasonFlowLimit},
		{Outcome: OutcomeReleased, Reason: ReasonRateLimit},
		{Outcome: OutcomeReleased, Reason: ReasonDeviceFailed},
		{Outcome: OutcomeReleased, Reason: ReasonAddress},
		{Outcome: OutcomeReleased, Reason: ReasonCarrierUnreachable},
		{Outcome: OutcomeReleased, Reason: ReasonOptionBlackholed, Remote: true}, // what the path does to SYNs no peer can tell
		{Outcome: OutcomeDeclined, Reason: ReasonAppRefused},
		{Outcome: OutcomeAborted, Reason: ReasonClientGone, Remote: true},
	}
	for _, v := range yes {
		require.True(t, p.Remembers(v), "%+v", v)
		require.NotEqual(t, ScopeNone, p.ScopeOf(v.Reason))
	}
	for _, v := range no {
		require.False(t, p.Remembers(v), "%+v", v)
	}
}

func TestCacheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := CachePolicy{NegativeTTL: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "ttl"))}
		r := Reason(rapid.Uint8().Draw(t, "reason"))
		previous := time.Duration(0)
		for count := 1; count < 80; count++ {
			ttl := p.TTL(r, count)
			require.GreaterOrEqual(t, ttl, previous, "never shorter")
			require.LessOrEqual(t, ttl, p.withDefaults().NegativeTTL)
			require.Equal(t, p.ScopeOf(r) == ScopeNone, ttl == 0)
			previous = ttl
		}
	})
}

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
