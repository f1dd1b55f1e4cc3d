package gateway

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/smcgw/smcgw/lab/wire"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// TestSoftPortInUse: without the device everything else goes on, and says so.
func TestSoftPortInUse(t *testing.T) {
	g, _ := softBesideAnother(t, config.NoPort)
	list := g.engine().devices()
	require.Len(t, list, 2)
	require.Equal(t, report.DeviceFailed, list[0].State)
	require.Contains(t, list[0].Error, "address already in use")
	require.Equal(t, report.DeviceAbsent, list[1].State, "hw")
	st := g.Status()
	require.Equal(t, []string{"device_failed"}, st.Degraded)
	require.Len(t, st.Notes, 2)
	require.Regexp(t, `^soft0: .*address already in use`, st.Notes[0])
	require.Equal(t, "carriers: none of [soft hw] works on this host, and every connection stays native: smcgw devices tells why", st.Notes[1])
}

// TestSoftOnItsAlternatePort: the device works, and the status says where.
func TestSoftOnItsAlternatePort(t *testing.T) {
	free, err := net.ListenPacket("udp", "127.77.0.4:0")
	require.NoError(t, err)
	alternate := free.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	require.NoError(t, free.Close())
	g, port := softBesideAnother(t, config.OptionalPort(alternate))
	require.Equal(t, report.DeviceActive, g.engine().devices()[0].State)
	require.Equal(t, alternate, g.engine().devices()[0].UDPPort)
	require.Empty(t, g.Status().Degraded)
	require.Equal(t, []string{fmt.Sprintf("soft0: receives on UDP port %d: UDP port %d is in use", alternate, port)}, g.Status().Notes)
}

// softBesideAnother is a gateway on a host where the port of its soft device, which
// is returned, is in use.
func softBesideAnother(t *testing.T, alternate config.OptionalPort) (*gateway, uint16) {
	t.Helper()
	addr := netip.MustParseAddr("127.77.0.4")
	taken, err := net.ListenPacket("udp", netip.AddrPortFrom(addr, 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	cfg := config.Config{Mode: report.ModeEnforce, StateDir: t.TempDir(), Shards: 1, Carriers: []report.DeviceKind{report.DeviceSoft, report.DeviceHW}}
	cfg.Soft.UDPPort, cfg.Soft.AlternatePort = taken.LocalAddr().(*net.UDPAddr).AddrPort().Port(), alternate
	wire := wire.New(1500, 1)
	t.Cleanup(wire.Close)
	g, err := newGateway(cfg.WithDefaults(), &site{localHost: localHost{
		Steering: newFakeSteering(), Legs: noLegs{}, Link: wire.A(),
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
	}}, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(g.close)
	return g, cfg.Soft.UDPPort
}
