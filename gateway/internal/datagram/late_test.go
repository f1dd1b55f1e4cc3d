package datagram

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/report"
)

// lateNetwork is a network that gets its address late.
type lateNetwork struct {
	network
	there *atomic.Bool
}

func (n lateNetwork) DatagramsAt(local, remote netip.Addr) (carrier.DatagramDevice, error) {
	if !n.there.Load() {
		return carrier.DatagramDevice{}, carrier.ErrNotHere
	}
	return n.network.DatagramsAt(local, remote)
}

// TestDeviceThatComesLate: that there was no way to a peer is not remembered for long, and
// does not count as a query.
func TestDeviceThatComesLate(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.stop(0)
	var there atomic.Bool
	h.edit = func(_ int, list []Provider) { list[0] = lateNetwork{list[0].(network), &there} }
	h.start(0)
	begun := time.Now()
	h.want(0)
	require.Eventually(t, func() bool { return h.d[0].peer(pairAddrs[1], 0).Reason != 0 }, patience, time.Millisecond)
	require.Zero(t, h.stats(0).Resolution.Queries)
	there.Store(true)
	require.Eventually(t, func() bool {
		h.want(0)
		return h.d[0].peer(pairAddrs[1], 0).Capable
	}, patience, 10*time.Millisecond)
	if queries := h.stats(0).Resolution.Queries; time.Since(begun) < 2*time.Second { // or it is sent again, to a host that is late
		require.EqualValues(t, 1, queries)
	}
}
