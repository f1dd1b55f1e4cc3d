package gateway

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/smcgw/smcgw/lab/wire"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
)

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// noLegs accepts and dials nothing: tests hand legs over themselves.
type noLegs struct{}

func (noLegs) Available() bool { return true }

func (noLegs) Note() string { return "" }

func (noLegs) Listen(host.Loop, func(int, host.Tuple)) (host.LegListener, error) {
	return noListener{}, nil
}

func (noLegs) Dial(on host.Loop, _ host.Tuple, _ host.Look, done func(int, error)) host.Dialling {
	return noDial(on.After(0, func() { done(-1, net.ErrClosed) }))
}

// noDial fails, unless it is ended before.
type noDial func()

func (d noDial) Cancel() { d() }

func (d noDial) Recall() bool {
	d()
	return true
}

type noListener struct{}

func (noListener) Close() error { return nil }

func (noListener) Arrived(then func()) { then() }

// testGateway is a gateway without datapath and applications, on a host with
// one address.
func testGateway(t testing.TB, shmDir string, addr netip.Addr, port uint16, steer *fakeSteering) *gateway {
	t.Helper()
	cfg := config.Config{Mode: report.ModeEnforce, CgroupPath: t.TempDir(), ShmDir: shmDir, StateDir: t.TempDir(), Shards: 1, Carriers: []report.DeviceKind{report.DeviceShm, report.DeviceSoft}}
	cfg.Soft.UDPPort = port
	cfg.Limits.Memory, cfg.Limits.PeerShare = 64<<20, config.AllShare // all of it: there are two hosts
	wire := wire.New(1500, 1)
	h := localHost{
		Steering: steer, Legs: noLegs{}, Link: wire.A(), ID: [16]byte{1},
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
	}
	g, err := newGateway(cfg.WithDefaults(), &site{localHost: h}, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Empty(t, g.engine().absent)
	t.Cleanup(func() {
		g.close()
		wire.Close()
	})
	return g
}

// pairAddrs are the addresses of the client's and the server's host.
var pairAddrs = twohosts.Addrs()

// gatewayPair is two gateways under one kernel.
type gatewayPair struct {
	g     [2]*gateway
	steer [2]*fakeSteering
	port  uint16
}

func newGatewayPair(t testing.TB) *gatewayPair {
	t.Helper()
	p := &gatewayPair{port: 1000}
	for i, h := range twohosts.Hosts(t) {
		p.steer[i] = newFakeSteering()
		p.g[i] = testGateway(t, h.Dir, h.Addr, h.Port, p.steer[i])
	}
	return p
}
