package conn

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
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

// pairConn is a connection through both gateways: the client's side is 0.
type pairConn struct {
	p    *pair
	flow [2]*Flow
	wire [2]*fakeWire
	app  [2]*net.TCPConn

	offer, answer negotiate.CarrierOffer // what PROPOSAL and ACCEPT say, once they have met
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
func (p *pair) begin(t require.TestingT, wires ...*fakeWire) *pairConn {
	for _, g := range p.g {
		g.Peers.Flush()
	}
	c := &pairConn{p: p}
	p.port++
	client := netip.AddrPortFrom(pairAddrs[0], p.port)
	server := netip.AddrPortFrom(pairAddrs[1], 80)
	tuples := [2]host.Tuple{{Local: client, Remote: server}, {Local: server, Remote: client}}
	states := [2]ebpf.State{ebpf.StateCarrying, ebpf.StateServing}
	copy(c.wire[:], wires)
	for i, side := range []report.Side{report.SideClient, report.SideServer} {
		p.steer[i].Put(ebpf.Flow{Tuple: ebpf.Tuple(tuples[i]), ISN: 7, State: states[i]})
		f := p.g[i].open(side, tuples[i], nil)
		app, leg := legPair(t)
		f.call(func() {
			assert.True(t, f.setWire(c.wire[i]))
			assert.True(t, f.setLeg(newAppLeg(leg, tuples[i])))
		})
		c.app[i], c.flow[i] = app, f
	}
	return c
}

// meet makes the queue pairs and connects them.
func (c *pairConn) meet(t require.TestingT, kind negotiate.CarrierKind) {
	f0, f1 := c.flow[0], c.flow[1]
	prov0, prov1 := c.p.g[0].providerOf(kind), c.p.g[1].providerOf(kind)
	c0, offer, err := f0.offer(prov0)
	require.NoError(t, err)
	f0.call(func() { assert.True(t, f0.addCarry(c0)) })
	require.NoError(t, prov1.Meet(context.Background(), f1.Peer(), offer))
	answers, reason := make(chan []negotiate.CarrierOffer, 1), make(chan negotiate.Reason, 1)
	p := &negotiate.Proposal{HostID: f0.env.HostID, Carriers: []negotiate.CarrierOffer{offer}}
	f1.Shard.Call(func() {
		f1.answerOffers(p, nil, func(*carry) func(rsocket.Events) { return nil }, func(offers []negotiate.CarrierOffer, why negotiate.Reason) {
			answers <- offers
			reason <- why
		})
	})
	require.Equal(t, negotiate.ReasonNone, <-reason)
	list := <-answers
	require.Len(t, list, 1)
	c.offer, c.answer = offer, list[0]
	f0.Shard.Call(func() { c0.Connect(c.answer, func(cause error) { err = cause }) })
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
func (p *pair) dial(t require.TestingT, kind negotiate.CarrierKind, wires ...*fakeWire) *pairConn {
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
		require.True(t, f.isBuried(), "%s flow is %s", f.Side, f.state())
	}
	return [2]life.Phase{c.flow[0].state(), c.flow[1].state()}
}

// chosen is the carry of a flow with an rdma carrier.
func (f *Flow) chosen() (c *carry) {
	f.call(func() { c = f.picked })
	return c
}

// call has the flow's shard run fn, and waits.
func (f *Flow) call(fn func()) {
	done := make(chan struct{})
	f.post(func() {
		defer close(done)
		fn()
	})
	<-done
}

// hasAll reports whether both directions have ended, and every byte of the peer's is here.
func (f *Flow) hasAll() (all bool) {
	f.call(func() {
		l := &f.core.Ledger
		received := l.Received
		if f.picked != nil {
			received = f.picked.EP.ReceivedOffset()
		}
		all = l.BothEnd() && received == l.Final
	})
	return all
}

func (f *Flow) isBuried() bool { return f.buried.Load() }

func (c *pairConn) closeApps() {
	for _, a := range c.app {
		_ = a.Close()
	}
}

// empty checks that nothing of any flow is left.
func (p *pair) empty(t require.TestingT) {
	for _, g := range p.g {
		require.Empty(t, g.all())
		deadline := time.Now().Add(patience)
		for g.pool.Stats().Used > 0 && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
		require.Zero(t, g.pool.Stats().Used)
		require.Zero(t, g.pool.Stats().Quarantined)
		var l loop.Load
		require.Eventuallyf(t, func() bool { // what is called comes before what waits for the end of its turn
			g.shards[0].Call(func() { l = g.shards[0].Load() })
			return l.Members+l.Descriptors+l.Later == 0
		}, patience, time.Millisecond, "%+v", &l)
	}
}

func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
