package soft

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// kept is a receiver that keeps a datagram beyond deliver.
type kept struct{ data []byte }

func (k *kept) deliver(d *datagram) { k.data = d.data }

// What a correct device does not show: the simulator finds trains that a kernel
// refuses, and a device that keeps datagrams.
func TestSimFindsMistakes(t *testing.T) {
	n := newSimNet(1)
	cfg := Config{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}.withDefaults()
	l, err := n.newLink(&cfg, 0)
	require.NoError(t, err)
	at := netip.AddrPortFrom(cfg.Addrs[0], cfg.UDPPort)
	for _, bad := range []train{
		{dst: at, size: 4, count: 3, total: 9, bufs: [][]byte{make([]byte, 10)}},
		{dst: at, size: 4, count: 2, total: 10, bufs: [][]byte{make([]byte, 10)}},
		{dst: at, size: 4, count: 4, total: 10, bufs: [][]byte{make([]byte, 10)}},
		{dst: at, size: 1, count: 65, total: 65, bufs: [][]byte{make([]byte, 65)}},
	} {
		require.Panics(t, func() { l.send([]train{bad}) })
	}
	n.arrive(at, at, false, []byte{1})
	var k kept
	l.receive(1, &k)
	require.Equal(t, []byte{0xdb}, k.data)
}

// Losses come in bursts.
func TestSimBurst(t *testing.T) {
	n := newSimNet(3)
	r := n.route(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	r.simFaults = simFaults{loss: 0.02, burst: 10}
	for range 4000 {
		r.finish(false, func(bool) {})
	}
	require.InDelta(t, 400, n.stats.lost, 200)
}
