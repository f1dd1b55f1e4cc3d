package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// rdmaCarriers are those with a queue pair, allCarriers those a flow can have.
var (
	rdmaCarriers = []negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft}
	allCarriers  = append(rdmaCarriers[:2:2], negotiate.CarrierRelay)
)

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// noLegs accepts and dials nothing: tests hand legs over themselves.
type noLegs struct{}

func (noLegs) Available() bool { return true }

func (noLegs) Listen(host.Loop, func(int, host.Tuple)) (host.LegListener, error) {
	return noListener{}, nil
}

func (noLegs) Dial(on host.Loop, _ host.Tuple, _ host.Look, done func(int, error)) func() {
	return on.After(0, func() { done(-1, net.ErrClosed) })
}

type noListener struct{}

func (noListener) Close() error { return nil }

func (noListener) Arrived(then func()) { then() }

// testGateway is a gateway without datapath and applications, on a host with
// one address.
func testGateway(t testing.TB, shmDir string, addr netip.Addr, port uint16, steer *fakeSteering) *gateway {
	t.Helper()
	cfg := config.Config{ShmDir: shmDir, StateDir: t.TempDir(), Shards: 1, Carriers: []config.DeviceKind{config.DeviceShm, config.DeviceSoft}}
	cfg.Soft.UDPPort = port
	cfg.Limits.Memory, cfg.Limits.PeerShare = 64<<20, 100 // all of it: there are two hosts
	wire := link.NewWire(1500, 1)
	h := Host{
		Steering: steer, Legs: noLegs{}, Link: wire.A(), ID: [16]byte{1},
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
	}
	g, err := newGateway(cfg.WithDefaults(), h, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Empty(t, g.absent)
	t.Cleanup(func() {
		g.close()
		wire.Close()
	})
	return g
}

// freePort returns a UDP port that nobody has now on the loopback addresses.
func freePort(t testing.TB) uint16 {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// pairAddrs are the addresses of the client's and the server's host.
var pairAddrs = [2]netip.Addr{netip.MustParseAddr("127.77.0.1"), netip.MustParseAddr("127.77.0.2")}

// gatewayPair is two gateways under one kernel.
type gatewayPair struct {
	g     [2]*gateway
	steer [2]*fakeSteering
	port  uint16
}

func newGatewayPair(t testing.TB) *gatewayPair {
	t.Helper()
	dir, err := os.MkdirTemp("", "smcgw") //nolint:usetesting // short: the rendezvous is a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &gatewayPair{port: 1000}
	port := freePort(t)
	for i := range p.g {
		p.steer[i] = newFakeSteering()
		p.g[i] = testGateway(t, dir, pairAddrs[i], port, p.steer[i])
	}
	return p
}

// pairConn is a connection through both gateways: the client's side is 0.
type pairConn struct {
	p    *gatewayPair
	flow [2]*flow
	wire [2]*fakeWire
	app  [2]*net.TCPConn
}

// legPair returns an application's socket and the gateway's side of it.
func legPair(t require.TestingT) (app *net.TCPConn, leg int) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	c, err := net.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	s, err := ln.Accept()
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.(*net.TCPConn).SetLinger(0))
	control(t, s.(*net.TCPConn), func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	rc, err := s.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) { leg, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }))
	require.NoError(t, err)
	return c.(*net.TCPConn), leg
}

// begin makes the flows of a connection whose negotiation is about to end. The carriers
// that connections before it have broken do not rest.
func (p *gatewayPair) begin(t require.TestingT, wires ...*fakeWire) *pairConn {
	for _, g := range p.g {
		g.peers.Flush()
	}
	c := &pairConn{p: p}
	p.port++
	client := netip.AddrPortFrom(pairAddrs[0], p.port)
	server := netip.AddrPortFrom(pairAddrs[1], 80)
	tuples := [2]host.Tuple{{Local: client, Remote: server}, {Local: server, Remote: client}}
	states := [2]ebpf.State{ebpf.StateCarrying, ebpf.StateServing}
	copy(c.wire[:], wires)
	for i, side := range []config.Side{config.SideClient, config.SideServer} {
		p.steer[i].put(ebpf.Flow{Tuple: ebpf.Tuple(tuples[i]), ISN: 7, State: states[i]})
		f, fresh := p.g[i].newFlow(side, tuples[i], 7)
		require.True(t, fresh)
		app, leg := legPair(t)
		f.call(func() {
			require.True(t, f.setWire(c.wire[i]))
			require.True(t, f.setLeg(newAppLeg(leg, tuples[i])))
		})
		c.app[i], c.flow[i] = app, f
	}
	return c
}

// fabricOf returns the device of a kind.
func (g *gateway) fabricOf(kind negotiate.CarrierKind) carrier.Fabric {
	for _, fb := range g.fabrics {
		if fb.Kind() == kind {
			return fb
		}
	}
	return nil
}

// meet makes the queue pairs and connects them.
func (c *pairConn) meet(t require.TestingT, kind negotiate.CarrierKind) {
	f0, f1 := c.flow[0], c.flow[1]
	fb0, fb1 := f0.g.fabricOf(kind), f1.g.fabricOf(kind)
	s0, s1 := f0.g.shardFor(f0), f1.g.shardFor(f1)
	c0, offer, err := f0.offer(fb0)
	require.NoError(t, err)
	f0.call(func() { require.True(t, f0.addCarry(c0)) })
	require.NoError(t, fb1.Meet(context.Background(), f1.peer(), offer))
	var answers []negotiate.CarrierOffer
	var reason negotiate.Reason
	p := &negotiate.Proposal{HostID: f0.g.hostID, Carriers: []negotiate.CarrierOffer{offer}}
	s1.Call(func() {
		answers, reason = f1.answerOffers(p, nil, func(*carry) func(rsocket.Events) { return nil })
	})
	require.Equal(t, negotiate.ReasonNone, reason)
	require.Len(t, answers, 1)
	answer := answers[0]
	s0.Call(func() { err = c0.Connect(answer) })
	require.NoError(t, err)
}

// carry hands both flows over from the negotiation.
func (c *pairConn) carry(kind negotiate.CarrierKind) {
	for _, f := range c.flow {
		f.call(func() { f.carryBy(kind) })
	}
	for _, f := range c.flow {
		f.call(func() { f.records(nil) })
	}
}

// dial is a connection carried by kind.
func (p *gatewayPair) dial(t require.TestingT, kind negotiate.CarrierKind, wires ...*fakeWire) *pairConn {
	if len(wires) == 0 {
		a, b := newFakeWires(1<<20, 1<<20)
		wires = []*fakeWire{a, b}
	}
	c := p.begin(t, wires...)
	if kind != negotiate.CarrierRelay {
		c.meet(t, kind)
	}
	c.carry(kind)
	return c
}

// over waits for the end of both flows and returns their states.
func (c *pairConn) over(t require.TestingT) [2]life.Phase {
	deadline := time.Now().Add(patience)
	for _, f := range c.flow {
		for !f.isBuried() && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		require.True(t, f.isBuried(), "%s flow is %s", f.side, f.getState())
	}
	return [2]life.Phase{c.flow[0].getState(), c.flow[1].getState()}
}

// chosen is the carry of a flow with an rdma carrier.
func (f *flow) chosen() (c *carry) {
	f.call(func() { c = f.picked })
	return c
}

// call has the flow's shard run fn, and waits.
func (f *flow) call(fn func()) {
	done := make(chan struct{})
	f.post(func() {
		defer close(done)
		fn()
	})
	<-done
}

func (f *flow) isBuried() bool { return f.buried.Load() }

func (c *pairConn) closeApps() {
	for _, a := range c.app {
		_ = a.Close()
	}
}

// empty checks that nothing of any flow is left.
func (p *gatewayPair) empty(t require.TestingT) {
	for _, g := range p.g {
		require.Empty(t, g.all())
		deadline := time.Now().Add(patience)
		for g.pool.Stats().Used > 0 && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
		require.Zero(t, g.pool.Stats().Used)
		require.Zero(t, g.pool.Stats().Quarantined)
		s := g.shards[0]
		s.Call(func() {
			l := s.Load()
			require.Zero(t, l.Members)
			require.Zero(t, l.Descriptors)
			require.Zero(t, l.Later)
		})
	}
}

func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
