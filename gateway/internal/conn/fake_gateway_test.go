package conn

import (
	"context"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/connlog"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs/shm"
)

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
