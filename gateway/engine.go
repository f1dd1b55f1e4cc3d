package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/beyond"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// engine is what a gateway has while it carries: loops, devices, legs and the table of
// connections. Methods that allow a nil engine return what an empty one would. mu guards only
// the table and is never held while calling out.
type engine struct {
	g    *gateway
	cfg  config.Config // at creation
	host localHost
	env  conn.Env // the environment that connections share with their gateway
	pool *rmb.Pool

	shards   []*loop.Shard
	carriers *carrier.Env
	absent   []report.DeviceInfo // configured but unavailable
	seed     maphash.Seed
	rate     *rate.Limiter

	desk        conn.Desk
	room        peers.Room
	limits      peers.Limits
	peers       *peers.Table
	dgrams      atomic.Pointer[datagram.Engine] // nil: no datagram is carried
	noDatagrams atomic.Pointer[error]           // why the engine could not be started; nil: no failure
	opening     sync.Mutex                      // held while dgrams is replaced; guards yielded, beyond and noBeyond
	beyond      *beyond.Service                 // nil: nothing is promoted between hosts
	noBeyond    bool                            // the port of beyond is not available
	yielded     bool                            // a successor has the datagram port
	blind       atomic.Bool                     // which sockets linger is unknown

	cancel   context.CancelFunc // of env.Context
	draining chan struct{}
	wg       sync.WaitGroup // goroutines of flows

	mu    sync.Mutex // guards everything below
	flows map[host.Tuple]*conn.Flow
	down  bool
}

// newEngine builds everything and starts the loops for a configuration; close undoes it.
func newEngine(g *gateway, cfg config.Config) (*engine, error) {
	e := &engine{
		g: g, cfg: cfg, host: *g.host, seed: maphash.MakeSeed(),
		peers: peers.NewTable(cfg.Limits), rate: rate.NewLimiter(rate.Limit(cfg.Limits.NewFlowsPerSecond), cfg.Limits.NewFlowsPerSecond),
		draining: make(chan struct{}), flows: map[host.Tuple]*conn.Flow{},
	}
	e.desk = conn.Desk{Env: &e.env, Find: e.find, Begin: e.newFlow, Hold: e.hold, Admit: e.admit, Auto: g.auto}
	e.limits = peers.Limits{Max: func() int { return g.live.Load().Limits.MaxFlows }, Flows: e.count, Rate: e.rate, Peers: e.peers, Note: e.room.Note}
	e.room = peers.Room{Tell: g.steer.Shed, Lacking: e.limits.Lacking, Log: g.log}
	e.environ()
	if err := e.build(); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// environ prepares what connections need and does not have to be opened.
func (e *engine) environ() {
	g, v := e.g, &e.env
	v.Log, v.HostID, v.Version, v.Faults, v.Die = g.log, e.host.ID, e.host.Version, e.host.faults, crash
	v.Steering, v.Legs, v.Datagrams = g.steer, e.host.Legs, datagramGateway{e}
	v.Peers, v.Pulse, v.Keys = e.peers, &g.pulse, g.keys
	v.Policy = negotiate.CachePolicy{NegativeTTL: e.cfg.Fallback.NegativeCache}
	v.HandshakeTimeout = func() time.Duration { return g.live.Load().Limits.HandshakeTimeout }
	v.Feed, v.Lines, v.Counters, v.Closed, v.Native = g.feed, g.lines, g.counters, g.closed, g.native
	_, _ = rand.Read(v.GatewayID[:])
	v.Context, e.cancel = context.WithCancel(context.Background())
	v.Draining, v.Work, v.Unlink = e.draining, &e.wg, e.unlink
}

func (e *engine) build() error {
	var err error
	if e.pool, err = rmb.NewPool(rmb.PoolConfig{
		Limit: int64(e.cfg.Limits.Memory), PeerLimit: int64(e.cfg.Limits.PeerShare.Of(int(e.cfg.Limits.Memory))),
	}); err != nil {
		return fmt.Errorf("memory pool: %w", err)
	}
	if err := e.startShards(); err != nil {
		return err
	}
	e.openProviders()
	if e.env.Stack, err = netstack.New(netstack.Config{
		Link: e.host.Link, Handler: &e.desk, Logger: e.g.log,
		Limits: wireLimits(e.cfg.Limits.MaxFlows),
	}); err != nil {
		return err
	}
	if e.env.Accepting, err = e.host.Legs.Listen(e.shards[0], e.desk.AppAccepted); err != nil {
		return fmt.Errorf("app legs: %w", err)
	}
	if err := startIntake(e.shards[0], e.host.Link); err != nil {
		return err
	}
	e.openDatagrams()
	return nil
}

// wireLimits returns the limits of the wire TCP for this many flows, which may all end at
// once and linger.
func wireLimits(maxFlows int) netstack.Limits {
	return netstack.Limits{Flows: 2 * maxFlows, Dead: max(8192, maxFlows)}
}

// startShards makes the event loops. By default there is one for every two cores: the other
// half runs the applications. GOMAXPROCS leaves room beside the loops, which hold their P
// while they are busy.
func (e *engine) startShards() error {
	n := e.cfg.Loops(runtime.NumCPU())
	if runtime.GOMAXPROCS(0) < n+2 {
		runtime.GOMAXPROCS(n + 2)
	}
	for i := range n {
		s, err := loop.New(i, e.g.log)
		if err != nil {
			return err
		}
		e.shards = append(e.shards, s)
	}
	return nil
}

// openProviders opens the devices and starts the loops that drive them.
func (e *engine) openProviders() {
	e.carriers = &carrier.Env{
		Config: e.cfg, Log: e.g.log, GatewayID: e.env.GatewayID, HostID: e.env.HostID, Shards: e.shards, Pool: e.pool, Peers: e.peers,
		Addrs: e.host.Addrs, RoCE: e.host.RoCE, Route: e.host.Route, Priority: e.host.Priority, Vacate: e.leaveCarrier,
		PeerDown:  func(p *shm.Peer) { e.dgrams.Load().PeerDown(p) },
		Withdrawn: func(dev verbs.Device) { e.dgrams.Load().LeaveDevice(dev) },
	}
	e.env.Providers, e.absent = carrier.Open(e.carriers)
	for _, s := range e.shards {
		s.Start()
	}
}

// close ends the engine, once: no new flows are accepted, handshakes fall back, carried flows
// are reset, and then the loops and devices end.
func (e *engine) close() {
	e.mu.Lock()
	e.down = true
	e.mu.Unlock()
	e.opening.Lock() // wait for a chore that opens it; later ones see that the engine is ending
	e.dgrams.Load().Close()
	e.opening.Unlock()
	e.settleBeyond()
	close(e.draining)
	for _, f := range e.all() {
		f.Cancel(negotiate.ReasonDrained)
	}
	if e.env.Stack != nil { // the loops are running
		e.catchUp()
	}
	e.cancel()
	e.wg.Wait()
	if e.env.Accepting != nil { // handshakes needed it until now
		_ = e.env.Accepting.Close()
	}
	if e.env.Stack != nil {
		_ = e.env.Stack.Close()
	}
	e.closeShards()
}

// catchUp waits until the shards have executed what was posted to them.
func (e *engine) catchUp() {
	if e == nil {
		return
	}
	for _, s := range e.shards {
		s.Call(func() {})
	}
}

// closeShards stops the loops, then closes the devices that use their pollers, and then the
// pollers.
func (e *engine) closeShards() {
	var errs []error
	for _, s := range e.shards {
		s.Halt()
		s.Detach()
	}
	e.dgrams.Load().Release()
	for _, prov := range e.env.Providers {
		errs = append(errs, prov.Close())
	}
	for _, s := range e.shards {
		s.CloseFDs()
	}
	if err := errors.Join(errs...); err != nil {
		e.g.log.Warn("close devices", "error", err)
	}
}

// configure puts new limits into effect.
func (e *engine) configure(limits config.Limits) {
	if e == nil {
		return
	}
	e.rate.SetLimit(rate.Limit(limits.NewFlowsPerSecond))
	e.rate.SetBurst(limits.NewFlowsPerSecond)
	e.peers.Configure(limits)
}

// ends reports whether the engine is ending.
func (e *engine) ends() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.down
}

// datagrams returns the datagram engine; nil: no datagrams are carried.
func (e *engine) datagrams() *datagram.Engine {
	if e == nil {
		return nil
	}
	return e.dgrams.Load()
}

// devices describes the configured devices.
func (e *engine) devices() []report.DeviceInfo {
	if e == nil {
		return nil
	}
	var list []report.DeviceInfo
	for _, prov := range e.env.Providers {
		list = append(list, prov.Devices()...)
	}
	return append(list, e.absent...)
}

// memory returns how much of the pool is in use.
func (e *engine) memory() map[string]uint64 {
	var of rmb.PoolStats
	if e != nil {
		of = e.pool.Stats()
	}
	return map[string]uint64{"reserved": uint64(of.Reserved), "used": uint64(of.Used), "quarantined": uint64(of.Quarantined)}
}

// peerUse returns what is known about peers, and the resources they use.
func (e *engine) peerUse() (map[netip.Addr]peers.Known, map[netip.Addr]report.PeerUse) {
	if e == nil {
		return nil, nil
	}
	return e.peers.Known(time.Now()), usePerPeer(e.peers, e.pool, e.env.Providers)
}

// parts sets the counters that end with the engine.
func (e *engine) parts(s *report.Snapshot) {
	e.datagrams().Snapshot(s)
	s.SharesRefused = e.sharesRefused()
	if e == nil {
		return
	}
	s.Panics = e.env.Panics()
	readWire(&s.Bounds, e.env.Stack.Stats())
	s.CQErrors = e.carriers.CQErrors()
}

// readWire sets the statistics of the wire TCP.
func readWire(b *report.Bounds, st netstack.Stats) {
	b.WireLegs = map[string]int{"open": st.Flows, "dead": st.Dead}
	b.Wire = map[string]uint64{
		"adopted": st.Adopted, "accepted": st.Accepted, "shed": st.Shed,
		"checksum_error": st.ChecksumErrors, "malformed": st.Malformed,
		"unknown": st.Unknown, "late_segment": st.LateSegments,
		"dead_evicted": st.DeadEvicted, "link_drop": st.LinkDrops, "link_refused": st.LinkRefused, "retransmit": st.Retransmits, "timeout": st.Timeouts,
		"stranger": st.Strangers, "impossible_ack": st.Impossible, "black_hole": st.BlackHoles,
		"reorder_drop": st.ReorderDropped, "old_timestamp": st.OldStamps,
	}
}
