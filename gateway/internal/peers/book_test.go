package peers

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

func TestPeerBookIsBounded(t *testing.T) {
	b := NewBook()
	policy := negotiate.CachePolicy{}
	now := time.Unix(1000, 0)
	addr := func(i int) netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	for i := range 2*peerBookLimit + 10 {
		b.Strike(addr(i), 80, negotiate.ReasonAppRefused, policy, now)
		b.Proven(addr(i), config.CarrierShm)
		require.LessOrEqual(t, len(b.strikes), peerBookLimit)
		require.LessOrEqual(t, len(b.capable), peerBookLimit)
	}
	for i := 0; len(b.strikes) < peerBookLimit; i++ {
		b.Strike(addr(i), 79, negotiate.ReasonAppRefused, policy, now)
	}
	late := now.Add(time.Hour) // all are without effect: they make room first
	b.Strike(addr(1), 81, negotiate.ReasonAppRefused, policy, late)
	require.Equal(t, 1, len(b.strikes))
}

func TestPeerBook(t *testing.T) {
	b := NewBook()
	a := netip.MustParseAddr("10.0.0.1")
	policy := negotiate.CachePolicy{NegativeTTL: 20 * time.Second}
	now := time.Unix(1000, 0)
	first := b.Strike(a, 80, negotiate.ReasonAppRefused, policy, now)
	again := b.Strike(a, 80, negotiate.ReasonAppRefused, policy, now.Add(first.TTL))
	require.Equal(t, 2*first.TTL, again.TTL)
	require.Equal(t, first.TTL, b.Strike(a, 81, negotiate.ReasonAppRefused, policy, now).TTL, "ports are apart")
	b.Flush()
	require.Equal(t, first.TTL, b.Strike(a, 80, negotiate.ReasonAppRefused, policy, now).TTL)

	b.Proven(a, config.CarrierRelay)
	b.Proven(a, config.CarrierShm)
	b.Proven(a, config.CarrierShm)
	require.ElementsMatch(t, []config.Carrier{config.CarrierShm, config.CarrierRelay}, b.Carriers()[a])
}

// What a later connection shows to be wrong is forgotten, and its row with it.
func TestPeerBookContradicted(t *testing.T) {
	b := NewBook()
	a, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	policy := negotiate.CachePolicy{}
	now := time.Unix(1000, 0)
	strike := func() {
		b.Strike(a, 0, negotiate.ReasonAcceptLost, policy, now)
		b.Strike(a, 80, negotiate.ReasonHandshakeTimeout, policy, now)
		b.Strike(a, 81, negotiate.ReasonAppRefused, policy, now)
		b.Strike(other, 80, negotiate.ReasonHandshakeTimeout, policy, now)
	}
	strike()
	require.Empty(t, b.Contradicted(a, 80, now.Add(-time.Second), policy), "it began before")
	later := now.Add(time.Second)
	require.ElementsMatch(t, []uint16{0, 80}, b.Contradicted(a, 0, later, policy), "of the gateway and the way to it")
	require.Empty(t, b.Contradicted(a, 0, later, policy))
	require.Equal(t, []uint16{81}, b.Contradicted(a, 81, later, policy))
	require.Len(t, b.strikes, 1)
	require.Len(t, b.struck, 1)
	strike()
	require.Equal(t, []uint16{0}, b.Contradicted(a, 0, now.Add(10*time.Second), policy), "what is over by then needs not be told")
	b.Flush()
	require.Empty(t, b.struck)
}
