package memhost

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// testNetwork is a network with named hosts that closes with the test.
func testNetwork(t *testing.T, names ...string) (*Network, []*Host) {
	t.Helper()
	n, err := NewNetwork(Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	var hosts []*Host
	for _, name := range names {
		h, err := n.AddHost(name)
		require.NoError(t, err)
		hosts = append(hosts, h)
	}
	return n, hosts
}

// echoOn serves connections on both families until the network closes.
func echoOn(t *testing.T, h *Host, port uint16) {
	t.Helper()
	v4, v6, err := h.Listen(port)
	require.NoError(t, err)
	for _, l := range []net.Listener{v4, v6} {
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = io.Copy(c, c)
				}()
			}
		}()
	}
}

// echoes checks that a connection works.
func echoes(t *testing.T, from *Host, to netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", to.String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("hello"))
	require.NoError(t, err)
	buf := make([]byte, 5)
	_, err = io.ReadFull(c, buf)
	require.NoError(t, err)
	require.Equal(t, "hello", string(buf))
}

func testConfig() GatewayConfig {
	return GatewayConfig{
		HeartbeatTimeout: 2 * time.Second,
		Config: config.Config{
			Mode: report.ModeEnforce, Carriers: []report.DeviceKind{},
			Policy: []config.Rule{{Match: config.Match{Ports: config.Ports(7000)}, Action: report.ActionAccelerate}},
		},
	}
}

func TestPlainHosts(t *testing.T) {
	_, h := testNetwork(t, "h1", "h2")
	echoOn(t, h[1], 7000)
	echoes(t, h[0], netip.AddrPortFrom(h[1].Addr4(), 7000))
	echoes(t, h[0], netip.AddrPortFrom(h[1].Addr6(), 7000))
}

// TestGatewayWithoutCarrier: the whole way from offer to release.
func TestGatewayWithoutCarrier(t *testing.T) {
	_, h := testNetwork(t, "h1", "h2")
	for _, host := range h {
		_, err := host.StartGateway(testConfig())
		require.NoError(t, err)
	}
	echoOn(t, h[1], 7000)
	echoes(t, h[0], netip.AddrPortFrom(h[1].Addr4(), 7000))
	echoes(t, h[0], netip.AddrPortFrom(h[1].Addr6(), 7000))
	st, err := h[0].gateway.Admin().Status(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, st.FallbacksTotal["no_common_carrier"], "%+v", st)
}
