package gateway

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
)

// Changed keys are in force for what begins then, and only what was remembered for
// the old ones is forgotten.
func TestSetKeys(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	require.NoError(t, steer.Remember(a, 7000, uint8(negotiate.ReasonAuthFailed), time.Minute))
	require.NoError(t, steer.Remember(b, 7000, uint8(negotiate.ReasonPolicy), time.Minute))
	now := time.Now()
	first := g.engine().peers.Strike(a, 7000, negotiate.ReasonAuthFailed, g.engine().env.Policy, now)
	keys := negotiate.Keys{[]byte("0123456789abcdef")}
	require.NoError(t, g.setKeys(keys))
	require.Equal(t, keys, g.keys.Load())
	left, err := steer.Peers()
	require.NoError(t, err)
	require.Equal(t, []ebpf.Peer{{Addr: b, Port: 7000, Reason: uint8(negotiate.ReasonPolicy), TTL: time.Minute}}, left)
	require.Equal(t, first, g.engine().peers.Strike(a, 7000, negotiate.ReasonAuthFailed, g.engine().env.Policy, now), "as if it were the first")

	require.NoError(t, steer.Remember(a, 7000, uint8(negotiate.ReasonAuthFailed), time.Minute))
	require.NoError(t, g.setKeys(negotiate.Keys{[]byte("0123456789abcdef")}), "no change")
	left, err = steer.Peers()
	require.NoError(t, err)
	require.Len(t, left, 2)
}
