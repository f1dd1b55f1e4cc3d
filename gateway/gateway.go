package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/connlog"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	"github.com/smcgw/smcgw/gateway/internal/guard"
	"github.com/smcgw/smcgw/gateway/internal/handover"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/observed"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/internal/tally"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

// gateway is a running gateway. Locks: mu guards the flow table only and is
// never held while calling out.
type gateway struct {
	cfg   config.Config
	log   *slog.Logger
	steer host.Steering
	legs  host.Legs
	host  Host
	addrs func() ([]netip.Addr, error) // nil: no network
	env   conn.Env                     // of connections, which have it in common with their gateway
	pool  *rmb.Pool

	shards   []*loop.Shard
	carriers *carrier.Env
	absent   []admin.DeviceInfo // configured, and not there
	seed     maphash.Seed
	rate     *rate.Limiter

	udp           pastDatagrams
	feed          *admin.Feed
	desk          conn.Desk
	room          peers.Room
	limits        peers.Limits
	peers         *peers.Table
	trials        *policy.Trials
	dgrams        atomic.Pointer[datagram.Engine] // nil: no datagram is carried
	noDatagrams   atomic.Pointer[error]           // why the engine could not be started; nil: nothing keeps it
	opening       sync.Mutex                      // held while dgrams is replaced; guards yielded
	yielded       bool                            // the port of datagrams is a successor's
	off, stopping atomic.Bool
	legless       atomic.Bool // sockets for legs cannot be made
	blind         atomic.Bool // which of them linger is not known
	refusals      peers.Refusals
	started       time.Time
	pulse         loop.Pulse
	heart         loop.Heart
	live          atomic.Pointer[liveConfig] // cfg, or what came after it: what reload can change is asked here
	reloads       *handover.Reloads
	renewal       *handover.Renewal
	rollout       *policy.Progress
	guard         *guard.Keeper
	observed      *observed.Book
	tally         *tally.Tally // of parts that have ended
	times         *loop.Times
	past          *ebpf.Counters // of the gateway in whose place this one is; nil: it is the first
	reloading     sync.Mutex     // of reload: before trials.mu
	heir          *gateway       // the gateway in the place of this one; guarded by reloading
	logDropped    func() uint64
	setLogLevel   func(slog.Level) // nil: it cannot be set

	cancel   context.CancelFunc // of env.Context
	draining chan struct{}
	drainer  *handover.Drainer
	wg       sync.WaitGroup // goroutines of flows

	mu     sync.Mutex // guards everything below
	flows  map[host.Tuple]*conn.Flow
	nextID uint64
	down   bool
}

// newGateway builds everything and starts the loops; close undoes it. The
// heartbeat does not beat yet, so no connection is touched.
func newGateway(cfg config.Config, h Host, log *slog.Logger) (*gateway, error) {
	g := &gateway{
		cfg: cfg, log: log, steer: h.Steering, legs: h.Legs, host: h, addrs: h.Addrs, seed: maphash.MakeSeed(),
		peers: peers.NewTable(cfg.Limits), started: time.Now(), draining: make(chan struct{}), drainer: handover.NewDrainer(),
		flows: map[host.Tuple]*conn.Flow{}, reloads: new(handover.Reloads), guard: new(guard.Keeper), observed: new(observed.Book), logDropped: func() uint64 { return 0 }, tally: new(tally.Tally), times: new(loop.Times),
		rate: rate.NewLimiter(rate.Limit(cfg.Limits.NewFlowsPerSecond), cfg.Limits.NewFlowsPerSecond),
	}
	g.feed = admin.NewFeed()
	g.udp = pastDatagrams{closed: admin.NewHistory(admin.HistorySize, g.feed), native: admin.NewHistory(admin.HistorySize, g.feed)}
	g.live.Store(&liveConfig{Config: cfg, since: time.Now()})
	g.desk = conn.Desk{Env: &g.env, Find: g.find, Begin: g.newFlow, Hold: g.hold, Admit: g.admit, Auto: g.auto}
	g.renewal = &handover.Renewal{Log: log, Apply: g.reload, Reloads: g.reloads}
	g.heart = loop.Heart{Write: g.steer.Heartbeat, Pulse: &g.pulse, Log: log}
	g.limits = peers.Limits{Max: func() int { return g.live.Load().Limits.MaxFlows }, Flows: g.count, Rate: g.rate, Peers: g.peers, Note: g.room.Note}
	g.room = peers.Room{Tell: g.steer.Shed, Lacking: g.limits.Lacking, Log: log}
	g.refusals = peers.Refusals{Tell: g.steer.Refuse}
	g.guard.Configure(cfg.Guard, guard.Totals{})
	g.rollout = policy.NewProgress(cfg.Rollout, g.steer, log)
	g.trials = policy.NewTrials(cfg, g.steer)
	g.environ()
	if err := errors.Join(g.build(h), g.followAdapters()); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// environ prepares what connections need and does not have to be opened.
func (g *gateway) environ() {
	e := &g.env
	e.Log, e.HostID, e.Version, e.Faults, e.Die = g.log, g.host.ID, g.host.Version, g.host.faults, crash
	e.Steering, e.Legs, e.Datagrams = g.steer, g.legs, datagramGateway{g}
	e.Peers, e.Pulse, e.Keys = g.peers, &g.pulse, conn.NewKeyring(g.log)
	e.Policy = negotiate.CachePolicy{NegativeTTL: g.cfg.Fallback.NegativeCache}
	e.HandshakeTimeout = func() time.Duration { return g.live.Load().Limits.HandshakeTimeout }
	e.Feed, e.Lines = g.feed, connlog.New(g.log, g.cfg.Log)
	e.Counters, e.Closed, e.Native = conn.NewCounters(), admin.NewHistory(admin.HistorySize, g.feed), admin.NewHistory(admin.HistorySize, g.feed)
	_, _ = rand.Read(e.GatewayID[:])
	e.Context, g.cancel = context.WithCancel(context.Background())
	e.Draining, e.Work, e.Unlink = g.draining, &g.wg, g.unlink
}

// crash ends the process as a failure, without a goroutine dump: the log has it.
func crash() { os.Exit(1) }

// carries reports whether the gateway can carry: its host has what that takes. Otherwise
// it has the programs count.
func (g *gateway) carries() bool { return g.host.Link != nil }

func (g *gateway) build(h Host) error {
	g.env.Keys.Set(h.keys)
	var err error
	if g.pool, err = rmb.NewPool(rmb.PoolConfig{
		Limit: int64(g.cfg.Limits.Memory), PeerLimit: max(1, int64(g.cfg.Limits.Memory)/100*int64(g.cfg.Limits.PeerShare)),
	}); err != nil {
		return fmt.Errorf("memory pool: %w", err)
	}
	if err := g.steer.SetProofs(g.cfg.Limits.NewFlowsPerSecond); err != nil {
		return fmt.Errorf("rate of connections that peers begin: %w", err)
	}
	if !g.carries() {
		return nil
	}
	if err := g.startShards(); err != nil {
		return err
	}
	g.openFabrics()
	if g.env.Stack, err = netstack.New(netstack.Config{
		Link: h.Link, Handler: &g.desk, Logger: g.log,
		Limits: wireLimits(g.cfg.Limits.MaxFlows),
	}); err != nil {
		return err
	}
	if g.env.Accepting, err = g.legs.Listen(g.shards[0], g.desk.AppAccepted); err != nil {
		return fmt.Errorf("app legs: %w", err)
	}
	if err := startIntake(g.shards[0], h.Link); err != nil {
		return err
	}
	g.openDatagrams()
	return nil
}

// wireLimits are those of the wire TCP for so many flows, which may all end at once and linger.
func wireLimits(maxFlows int) netstack.Limits {
	return netstack.Limits{Flows: 2 * maxFlows, Dead: max(8192, maxFlows)}
}

// startShards makes the event loops. By default they have half of the cores:
// the other half runs the applications. GOMAXPROCS leaves room beside the
// loops, which hold their P while they are busy.
func (g *gateway) startShards() error {
	n := g.cfg.Loops(runtime.NumCPU())
	if runtime.GOMAXPROCS(0) < n+2 {
		runtime.GOMAXPROCS(n + 2)
	}
	for i := range n {
		s, err := loop.New(i, g.log, loop.Options{Spin: g.cfg.Spin.Duration(), CPUs: g.cfg.CPUs, Place: true})
		if err != nil {
			return err
		}
		g.shards = append(g.shards, s)
	}
	g.heart.Loops = g.shards
	g.times.Begin(g.shards)
	return nil
}

// openFabrics opens the devices, and starts the loops that drive them.
func (g *gateway) openFabrics() {
	g.carriers = &carrier.Env{
		Config: g.cfg, Log: g.log, GatewayID: g.env.GatewayID, HostID: g.env.HostID, Shards: g.shards, Pool: g.pool, Peers: g.peers,
		Addrs: g.addrs, RoCE: g.host.RoCE, Route: g.host.Route, Priority: g.host.Priority, Vacate: g.leaveCarrier,
		PeerDown:  func(p *shm.Peer) { g.dgrams.Load().PeerDown(p) },
		Withdrawn: func(dev verbs.Device) { g.dgrams.Load().LeaveDevice(dev) },
	}
	g.env.Fabrics, g.absent = carrier.Open(g.carriers)
	for _, s := range g.shards {
		s.Start()
	}
}

// close ends the gateway: nothing new is taken, flows in handshake are given
// back, carried ones are reset, then the loops and devices end.
func (g *gateway) close() {
	g.mu.Lock()
	already := g.down
	g.down = true
	g.mu.Unlock()
	if already {
		return
	}
	g.opening.Lock() // after a chore that opens it; later ones see that the gateway stops
	g.dgrams.Load().Close()
	g.opening.Unlock()
	close(g.draining)
	for _, f := range g.all() {
		f.Cancel(negotiate.ReasonDrained)
	}
	if g.env.Stack != nil { // the loops run
		g.catchUp()
	}
	g.cancel()
	g.wg.Wait()
	if g.env.Accepting != nil { // handshakes have come to their ends by it
		_ = g.env.Accepting.Close()
	}
	g.env.Lines.Flush()
	if g.env.Stack != nil {
		_ = g.env.Stack.Close()
	}
	g.closeShards()
}

// catchUp waits until the shards have done what was posted to them.
func (g *gateway) catchUp() {
	for _, s := range g.shards {
		s.Call(func() {})
	}
}

// closeShards ends the loops, then the devices that use their pollers, and then
// the pollers.
func (g *gateway) closeShards() {
	var errs []error
	for _, s := range g.shards {
		s.Halt()
		s.Detach()
	}
	g.dgrams.Load().Release()
	for _, fb := range g.env.Fabrics {
		errs = append(errs, fb.Close())
	}
	for _, s := range g.shards {
		s.CloseFDs()
	}
	if err := errors.Join(errs...); err != nil {
		g.log.Warn("close devices", "error", err)
	}
}
