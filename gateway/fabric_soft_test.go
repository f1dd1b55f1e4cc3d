package gateway

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// TestSoftPortInUse: without the device everything else goes on, and says so.
func TestSoftPortInUse(t *testing.T) {
	addr := netip.MustParseAddr("127.77.0.4")
	taken, err := net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
	require.NoError(t, err)
	defer taken.Close()
	cfg := config.Config{StateDir: t.TempDir(), Shards: 1, Carriers: []config.DeviceKind{config.DeviceSoft, config.DeviceHW}}
	cfg.Soft.UDPPort = taken.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	wire := link.NewWire(1500, 1)
	defer wire.Close()
	g, err := newGateway(cfg.WithDefaults(), Host{
		Steering: newFakeSteering(), Legs: noLegs{}, Link: wire.A(),
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer g.close()
	list := g.Devices()
	require.Len(t, list, 2)
	require.Equal(t, admin.DeviceFailed, list[0].State)
	require.Contains(t, list[0].Error, "address already in use")
	require.Equal(t, admin.DeviceAbsent, list[1].State)
	require.Equal(t, []string{"device_failed"}, g.Status().Degraded)
}
