package gateway

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
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

// TestSoftGivesUpASilentPeer: its flow goes on over the relay, and the carrier has
// to be proved again.
func TestSoftGivesUpASilentPeer(t *testing.T) {
	p := newGatewayPair(t)
	c := p.dial(t, negotiate.CarrierSoft)
	mine, other := c.flow[0].chosen(), c.flow[1].chosen()
	mine.Proved()
	other.Shard.Call(func() { _ = other.QP.Close() })
	start := time.Now()
	_, err := c.app[0].Write([]byte("anybody there?"))
	require.NoError(t, err)
	_ = c.app[1].SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, 14)
	_, err = io.ReadFull(c.app[1], got)
	require.NoError(t, err)
	require.Equal(t, "anybody there?", string(got))
	require.WithinRange(t, time.Now(), start.Add(2*time.Second), start.Add(patience))
	require.Equal(t, "peer_dead", c.flow[0].info(time.Now()).Demoted)
	require.Equal(t, DemotedByPeer, c.flow[1].info(time.Now()).Demoted)
	require.False(t, mine.Warm())
	c.closeApps()
	c.over(t)
	p.empty(t)
}
