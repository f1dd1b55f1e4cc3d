package negotiate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCacheScope(t *testing.T) {
	var p CachePolicy
	for _, r := range []Reason{ReasonOptionBlackholed, ReasonAcceptLost, ReasonCarrierUnreachable} {
		require.Equal(t, ScopePeer, p.ScopeOf(r), r)
	}
	for _, r := range []Reason{
		ReasonAppRefused, ReasonAppUnreachable, ReasonNoMemory, ReasonFlowLimit, ReasonVersion, ReasonPolicy,
		ReasonNoCommonCarrier, ReasonHandshakeTimeout, ReasonAuthFailed, ReasonProtocolError, Reason(200),
	} {
		require.Equal(t, ScopeService, p.ScopeOf(r), r)
	}
	for _, r := range []Reason{ReasonNone, ReasonNAT, ReasonSYNOptions, ReasonPeerNoOption, ReasonLostBytes, ReasonGatewayStale} {
		require.Equal(t, ScopeNone, p.ScopeOf(r), r)
		require.Zero(t, p.TTL(r, 1), r)
	}
}

func TestCacheTTL(t *testing.T) {
	p := CachePolicy{NegativeTTL: 10 * time.Minute, Retry: time.Hour}
	require.Equal(t, p.TTL(ReasonVersion, 7), CachePolicy{}.TTL(ReasonVersion, 7), "defaults")
	for count, want := range map[int]time.Duration{
		-1: time.Hour, 0: time.Hour, 1: time.Hour, 2: 2 * time.Hour, 3: 4 * time.Hour, 6: 32 * time.Hour, 1 << 40: 32 * time.Hour,
	} {
		require.Equal(t, want, p.TTL(ReasonOptionBlackholed, count), "blackholed %d times", count)
	}
	for count, want := range map[int]time.Duration{
		1: 30 * time.Second, 2: time.Minute, 5: 8 * time.Minute, 6: 10 * time.Minute, 1 << 40: 10 * time.Minute,
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
	s := p.Next(Strike{}, ReasonOptionBlackholed, now)
	require.Equal(t, Strike{Reason: ReasonOptionBlackholed, Count: 1, Until: now.Add(time.Hour), TTL: time.Hour}, s)
	require.True(t, s.Active(now))
	require.False(t, s.Active(s.Until))

	soon := s.Until.Add(time.Minute)
	require.Equal(t, 2, p.Next(s, ReasonOptionBlackholed, soon).Count)
	require.Equal(t, 1, p.Next(s, ReasonAcceptLost, soon).Count, "other reason")
	require.Equal(t, 1, p.Next(s, ReasonOptionBlackholed, s.Until.Add(time.Hour)).Count, "good for an hour")
	require.False(t, Strike{}.Active(now))
}

func TestCacheRemembers(t *testing.T) {
	var p CachePolicy
	yes := []Verdict{
		{Outcome: OutcomeReleased, Reason: ReasonAppRefused, Remote: true},
		{Outcome: OutcomeReleased, Reason: ReasonHandshakeTimeout},
		{Outcome: OutcomeReleased, Reason: ReasonWireReset, Remote: true},
		{Outcome: OutcomeRaw, Reason: ReasonAcceptLost},
		{Outcome: OutcomeAborted, Reason: ReasonAcceptLost},
		{Outcome: OutcomeCarried, Reason: ReasonCarrierUnreachable},
	}
	no := []Verdict{
		{},
		{Outcome: OutcomeCarried, Carrier: CarrierSHM},
		{Outcome: OutcomeCarried, Reason: ReasonCarrierUnreachable, Remote: true},
		{Outcome: OutcomeReleased, Reason: ReasonClientGone},
		{Outcome: OutcomeReleased, Reason: ReasonDrained},
		{Outcome: OutcomeReleased, Reason: ReasonNoMemory}, // what this host lacks is no fact about the peer
		{Outcome: OutcomeReleased, Reason: ReasonFlowLimit},
		{Outcome: OutcomeReleased, Reason: ReasonRateLimit},
		{Outcome: OutcomeReleased, Reason: ReasonDeviceFailed},
		{Outcome: OutcomeReleased, Reason: ReasonAddress},
		{Outcome: OutcomeReleased, Reason: ReasonCarrierUnreachable},
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
		p := CachePolicy{
			NegativeTTL: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "ttl")),
			Retry:       time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "retry")),
		}
		r := Reason(rapid.Uint8().Draw(t, "reason"))
		previous := time.Duration(0)
		for count := 1; count < 80; count++ {
			ttl := p.TTL(r, count)
			require.GreaterOrEqual(t, ttl, previous, "never shorter")
			require.LessOrEqual(t, ttl, max(p.withDefaults().NegativeTTL, p.withDefaults().Retry<<maxRetryShift))
			require.Equal(t, p.ScopeOf(r) == ScopeNone, ttl == 0)
			previous = ttl
		}
	})
}
