package datagram

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// lateNetwork is a Network that gets its address late.
type lateNetwork struct {
	Network
	there *atomic.Bool
}

func (n lateNetwork) DeviceAt(local, remote netip.Addr) (Device, error) {
	if !n.there.Load() {
		return Device{}, errNotHere
	}
	return n.Network.DeviceAt(local, remote)
}

// TestDeviceThatComesLate: that there was no way to a peer is not remembered for long, and
// does not count as a query.
func TestDeviceThatComesLate(t *testing.T) {
	h := newHosts(t, report.DeviceSoft)
	h.stop(0)
	var there atomic.Bool
	h.edit = func(_ int, list []Provider) { list[0] = lateNetwork{list[0].(Network), &there} }
	h.start(0)
	h.want(0)
	require.Eventually(t, func() bool { return h.d[0].peer(pairAddrs[1], 0).Reason != 0 }, patience, time.Millisecond)
	require.Zero(t, h.stats(0).Resolution.Queries)
	there.Store(true)
	require.Eventually(t, func() bool {
		h.want(0)
		return h.d[0].peer(pairAddrs[1], 0).Capable
	}, patience, 10*time.Millisecond)
	require.EqualValues(t, 1, h.stats(0).Resolution.Queries)
}
