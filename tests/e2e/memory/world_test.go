package memory

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/memhost"
	"github.com/smcgw/smcgw/netstack"
)

// world is a network of three hosts: h1 and h2 can run gateways, h3 is plain.
type world struct {
	t          *testing.T
	net        *memhost.Network
	h1, h2, h3 *memhost.Host
	g1, g2     *memhost.Gateway
	apps       map[*memhost.Host]*apps
}

// newWorld builds hosts and applications and looks for leaks at the end.
func newWorld(t *testing.T) *world {
	t.Helper()
	leak.Check(t)
	n, err := memhost.NewNetwork(memhost.Config{})
	require.NoError(t, err)
	w := &world{t: t, net: n, apps: map[*memhost.Host]*apps{}}
	t.Cleanup(w.close)
	for _, h := range []**memhost.Host{&w.h1, &w.h2, &w.h3} {
		*h, err = n.AddHost(fmt.Sprintf("h%d", len(w.apps)+1))
		require.NoError(t, err)
		w.apps[*h] = startApps(t, *h)
	}
	return w
}

func (w *world) close() {
	for _, a := range w.apps {
		a.close()
	}
	require.NoError(w.t, w.net.Close())
	for _, a := range w.apps {
		a.loops.Wait()
	}
}

// settings change the configuration of a test's gateway.
type settings func(*memhost.GatewayConfig)

// up starts a gateway. Deadlines are long, since the machine may be busy.
func (w *world) up(h *memhost.Host, change ...settings) *memhost.Gateway {
	w.t.Helper()
	c := memhost.GatewayConfig{
		HeartbeatTimeout: 5 * time.Second,
		Version:          "test",
		Config: config.Config{
			Mode: report.ModeEnforce, Carriers: []report.DeviceKind{report.DeviceShm}, Shards: 1,
			Policy: []config.Rule{{
				Name:   "test",
				Match:  config.Match{Ports: config.Ports(echoPort, sourcePort, sinkPort, resetPort, holdPort, lateEchoes, closedPort)},
				Action: report.ActionAccelerate,
			}},
			Limits: config.Limits{HandshakeTimeout: 5 * time.Second, Memory: 256 << 20},
		},
	}
	if os.Getenv("SMCGW_TEST_LOG") != "" {
		handler := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})
		c.Logger = slog.New(handler).With("host", h.Name())
	}
	for _, fn := range change {
		fn(&c)
	}
	g, err := h.StartGateway(c)
	require.NoError(w.t, err)
	return g
}

// both starts the gateways of h1 and h2.
func (w *world) both(change ...settings) {
	w.t.Helper()
	w.g1, w.g2 = w.up(w.h1, change...), w.up(w.h2, change...)
}

// families runs fn with the addresses of IPv4 and of IPv6.
func families(t *testing.T, fn func(t *testing.T, addr func(*memhost.Host) netip.Addr)) {
	t.Helper()
	t.Run("v4", func(t *testing.T) { fn(t, (*memhost.Host).Addr4) })
	t.Run("v6", func(t *testing.T) { fn(t, (*memhost.Host).Addr6) })
}

// patience bounds every single wait of a test.
const patience = 30 * time.Second

// dial connects an application of h1 and gives it a deadline.
func (w *world) dial(t *testing.T, to netip.Addr, port uint16) *netstack.HostConn {
	t.Helper()
	c, err := w.tryDial(t, to, port)
	require.NoError(t, err)
	return c
}

func (w *world) tryDial(t *testing.T, to netip.Addr, port uint16) (*netstack.HostConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := w.h1.DialFrom(ctx, netip.AddrPort{}, netip.AddrPortFrom(to, port))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(3*patience)))
	return c, nil
}

func addrOf(c *netstack.HostConn) netip.AddrPort {
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

// anyReason is for ends that do not have one reason on both sides, anyCarrier
// for connections that end before or after a carrier is chosen.
const (
	anyReason  = "*"
	anyCarrier = report.Carrier("*")
)

// wanted is what a connection must look like to its gateway.
type wanted struct {
	side    report.Side
	carrier report.Carrier
	reason  string
	state   string
	end     report.End
}

// find waits until gateway g shows the client's connection as wanted.
func find(t *testing.T, g *memhost.Gateway, client netip.AddrPort, want wanted) report.ConnInfo {
	t.Helper()
	var seen []report.ConnInfo
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		seen = nil
		for _, q := range []report.ConnQuery{{All: true}, {Closed: true}} {
			list, err := g.Admin().Conns(t.Context(), q)
			require.NoError(t, err)
			for _, c := range list.Conns {
				if c.Local == client || c.Remote == client {
					seen = append(seen, c)
				}
				if want.matches(c, client) {
					return c
				}
			}
		}
	}
	require.FailNow(t, "connection is not as wanted", "want %+v of %v, seen %+v", want, client, seen)
	return report.ConnInfo{}
}

func (w wanted) matches(c report.ConnInfo, client netip.AddrPort) bool {
	own := c.Local
	if w.side == report.SideServer {
		own = c.Remote
	}
	return own == client && c.Side == w.side && (w.carrier == anyCarrier || c.Carrier == w.carrier) &&
		(w.reason == anyReason || c.Reason == w.reason) && (w.state == "" || c.State == w.state) && (w.end == "" || c.End == w.end)
}

// native checks that the connection of c stayed or became native for a reason.
func (w *world) native(t *testing.T, c *netstack.HostConn, reason string) {
	t.Helper()
	find(t, w.g1, addrOf(c), wanted{side: report.SideClient, reason: reason, end: report.EndNative})
}

// reasonOf is the reason of an orderly flow on a carrier.
var reasonOf = map[report.Carrier]string{
	report.CarrierShm:   "",
	report.CarrierRelay: "carrier_unreachable",
}

// carried checks that both gateways carry, or carried, the connection of c.
func (w *world) carried(t *testing.T, c *netstack.HostConn, by report.Carrier, end report.End) {
	t.Helper()
	reason := reasonOf[by]
	if end == report.EndAborted {
		reason = anyReason // the side that aborts has none, the other side says what it saw
	}
	find(t, w.g1, addrOf(c), wanted{side: report.SideClient, carrier: by, reason: reason, end: end})
	find(t, w.g2, addrOf(c), wanted{side: report.SideServer, carrier: by, reason: reason, end: end})
}

// quiet waits until a gateway has no flow left and its memory is free.
func quiet(t *testing.T, g *memhost.Gateway) {
	t.Helper()
	var st report.Status
	require.Eventuallyf(t, func() bool {
		var err error
		st, err = g.Admin().Status(t.Context())
		require.NoError(t, err)
		for _, n := range st.Flows {
			if n > 0 {
				return false
			}
		}
		return st.Memory.UsedBytes == 0
	}, patience, 10*time.Millisecond, "flows or memory left")
}
