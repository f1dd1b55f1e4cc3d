package gateway

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/lab/wire"
)

// TestSoftPortInUse: without the device everything else goes on, and says so.
func TestSoftPortInUse(t *testing.T) {
	g := softBeside(t, 4791, 4793)
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

// softBeside is a gateway on a host where ports are in use.
func softBeside(t *testing.T, ports ...uint16) *gateway {
	t.Helper()
	addr := twohosts.Addr(4)
	for _, p := range ports {
		taken, err := net.ListenPacket("udp", netip.AddrPortFrom(addr, p).String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = taken.Close() })
	}
	cfg := config.Config{Mode: report.ModeEnforce, StateDir: t.TempDir(), Shards: 1, Carriers: []report.DeviceKind{report.DeviceSoft, report.DeviceHW}}
	wire := wire.New(1500, 1)
	t.Cleanup(wire.Close)
	g, err := newGateway(cfg.WithDefaults(), &site{localHost: localHost{
		Steering: newFakeSteering(), Legs: noLegs{}, Link: wire.A(),
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
	}}, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(g.close)
	return g
}
