package conn

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/connlog"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs/shm"
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

// fakeGateway is what connections need of a gateway, on a host with one address: a shard,
// devices, and a table. It has no wire TCP and no applications: tests give connections both
// of their legs.
type fakeGateway struct {
	Env
	pool     *rmb.Pool
	shards   []*loop.Shard
	draining chan struct{}
	work     sync.WaitGroup
	pulse    loop.Pulse
	drained  sync.Once

	mu     sync.Mutex // guards everything below
	flows  map[host.Tuple]*Flow
	nextID uint64
}

func newFakeGateway(t testing.TB, shmDir string, addr netip.Addr, port uint16, steer *twohosts.Table) *fakeGateway {
	t.Helper()
	cfg := config.Config{ShmDir: shmDir, Shards: 1, Carriers: []report.DeviceKind{report.DeviceShm, report.DeviceSoft}}
	cfg.Soft.UDPPort = port
	cfg.Limits.Memory, cfg.Limits.PeerShare = 64<<20, config.AllShare // all of it: there are two hosts
	cfg = cfg.WithDefaults()
	g := &fakeGateway{flows: map[host.Tuple]*Flow{}, draining: make(chan struct{})}
	g.Log, g.Steering, g.HostID, g.GatewayID = slog.New(slog.DiscardHandler), steer, [16]byte{1}, addr.As16()
	g.Peers, g.Keys, g.Pulse = peers.NewTable(cfg.Limits), NewKeyring(g.Log), &g.pulse
	g.Policy = negotiate.CachePolicy{NegativeTTL: cfg.Fallback.NegativeCache}
	g.Lines = connlog.New(g.Log, cfg.Log)
	g.Counters, g.Closed, g.Native = NewCounters(), report.NewHistory(1024, nil), report.NewHistory(1024, nil)
	g.Die = func() { t.Error("too many panics") }
	g.Draining, g.Work, g.Unlink = g.draining, &g.work, g.unlink
	var err error
	g.pool, err = rmb.NewPool(rmb.PoolConfig{Limit: int64(cfg.Limits.Memory), PeerLimit: int64(cfg.Limits.Memory)})
	require.NoError(t, err)
	if room := 3; runtime.GOMAXPROCS(0) < room { // beside a loop, which holds its P while it is busy
		runtime.GOMAXPROCS(room)
	}
	s, err := loop.New(0, g.Log)
	require.NoError(t, err)
	g.shards = []*loop.Shard{s}
	var absent []report.DeviceInfo
	g.Providers, absent = carrier.Open(&carrier.Env{
		Config: cfg, Log: g.Log, GatewayID: g.GatewayID, HostID: g.HostID, Shards: g.shards, Pool: g.pool, Peers: g.Peers,
		Addrs: func() ([]netip.Addr, error) { return []netip.Addr{addr}, nil },
		Vacate: func(kind negotiate.CarrierKind, uses func(*carrier.Link) bool, hard bool) {
			for _, f := range g.all() {
				f.LeaveDevice(kind, uses, hard)
			}
		},
		PeerDown: func(*shm.Peer) {},
	})
	require.Empty(t, absent)
	s.Start()
	var stop context.CancelFunc
	g.Context, stop = context.WithCancel(context.Background())
	t.Cleanup(func() {
		g.drain()
		stop()
		s.Halt()
		s.Detach()
		for _, prov := range g.Providers {
			require.NoError(t, prov.Close())
		}
		s.CloseFDs()
	})
	return g
}

// drain ends all connections as a gateway does that is going down.
func (g *fakeGateway) drain() {
	g.drained.Do(func() { close(g.draining) })
	for _, f := range g.all() {
		f.Cancel(negotiate.ReasonDrained)
	}
	g.shards[0].Call(func() {})
	g.work.Wait()
}

// open makes a connection and enters it into the table.
func (g *fakeGateway) open(side report.Side, t host.Tuple, trial *config.Trial) *Flow {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nextID++
	f := g.New(Opening{ID: g.nextID, Side: side, Tuple: t, ISN: 7, Shard: g.shards[0], Trial: trial})
	g.flows[t] = f
	return f
}

func (g *fakeGateway) unlink(f *Flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.flows[f.Tuple] == f {
		delete(g.flows, f.Tuple)
		f.Share.End()
	}
}

func (g *fakeGateway) all() (list []*Flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.flows {
		list = append(list, f)
	}
	return list
}

// snapshot is the numbers of its connections.
func (g *fakeGateway) snapshot() report.Snapshot {
	s := report.Snapshot{
		Flows: map[report.Carrier]int{}, FlowsTotal: map[report.Carrier]uint64{},
		BytesTotal: map[report.Carrier]report.ByteCount{}, Handshakes: map[report.Carrier]report.HistogramSnapshot{},
	}
	g.Counters.AddTo(&s)
	for _, f := range g.all() {
		f.AddTo(&s)
	}
	return s
}

// providerOf returns the device of a kind.
func (g *fakeGateway) providerOf(kind negotiate.CarrierKind) carrier.Provider {
	for _, prov := range g.Providers {
		if prov.Kind() == kind {
			return prov
		}
	}
	return nil
}

// pairAddrs are the addresses of the client's and the server's host.
var pairAddrs = twohosts.Addrs()

// pair is two gateways under one kernel.
type pair struct {
	g     [2]*fakeGateway
	steer [2]*twohosts.Table
	port  uint16
}

func newPair(t testing.TB) *pair {
	t.Helper()
	p := &pair{port: 1000}
	for i, h := range twohosts.Hosts(t) {
		p.steer[i] = twohosts.NewTable()
		p.g[i] = newFakeGateway(t, h.Dir, h.Addr, h.Port, p.steer[i])
	}
	return p
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	// Those that are parallel wait more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(leak.Main(m))
}
