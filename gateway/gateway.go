package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/internal/auto"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/internal/upgrade"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/verbs/shm"
)

// historySize bounds what conns --closed and conns --all remember.
const historySize = 1024

// gateway is a running gateway. Locks: mu guards the flow table only and is
// never held while calling out.
type gateway struct {
	cfg    config.Config
	log    *slog.Logger
	id     [16]byte // random per start
	hostID [16]byte
	steer  host.Steering
	legs   host.Legs
	host   Host
	addrs  func() ([]netip.Addr, error) // nil: no network
	stack  *netstack.Stack
	pool   *rmb.Pool
	policy negotiate.CachePolicy
	keys   keyring
	seen   negotiate.Seen // PROPOSALs that were believed

	shards  []*loop.Shard
	fabrics []carrier.Fabric
	absent  []admin.DeviceInfo // configured, and not there
	accept  host.LegListener
	seed    maphash.Seed
	rate    *rate.Limiter

	closed, native *admin.History
	udp            pastDatagrams
	count          *counters
	room           room
	peers          *peers.Table
	auto           *auto.Book // nil: no rule has action auto
	trials         *policy.Trials
	demotions      demotionLog
	silences       silences
	dgrams         atomic.Pointer[datagram.Engine] // nil: no datagram is carried
	noDatagrams    bool                            // the engine could not be started
	off, stopping  atomic.Bool
	legless        atomic.Bool // nobody makes sockets for legs any more
	started        time.Time
	faults         faults.Injector // nil: none
	panics         panics
	live           atomic.Pointer[liveConfig] // cfg, or what came behind it: what reload can change is asked here
	reloading      sync.Mutex                 // of reload: before trials.mu
	die            func()                     // ends the process
	pulse          loop.Pulse
	logDropped     func() uint64

	ctx      context.Context // ends with the gateway
	cancel   context.CancelFunc
	draining chan struct{}
	drainer  *upgrade.Drainer
	wg       sync.WaitGroup // goroutines of flows

	mu     sync.Mutex // guards everything below
	flows  map[host.Tuple]*flow
	nextID uint64
	down   bool
}

// newGateway builds everything and starts the loops; close undoes it. The
// heartbeat does not beat yet, so no connection is touched.
func newGateway(cfg config.Config, h Host, log *slog.Logger) (*gateway, error) {
	g := &gateway{
		cfg: cfg, log: log, hostID: h.ID, steer: h.Steering, legs: h.Legs, host: h, addrs: h.Addrs, faults: h.faults,
		policy: negotiate.CachePolicy{
			NegativeTTL: cfg.Fallback.NegativeCache, Retry: cfg.Fallback.Retry,
			BlackholeAfter: cfg.Fallback.BlackholeAfter,
		},
		seed: maphash.MakeSeed(), closed: admin.NewHistory(historySize), native: admin.NewHistory(historySize),
		udp:   pastDatagrams{closed: admin.NewHistory(historySize), native: admin.NewHistory(historySize)},
		count: newCounters(), peers: peers.NewTable(cfg.Limits), started: time.Now(), draining: make(chan struct{}), drainer: upgrade.NewDrainer(),
		flows: map[host.Tuple]*flow{}, die: crash, logDropped: func() uint64 { return 0 },
		rate: rate.NewLimiter(rate.Limit(cfg.Limits.NewFlowsPerSecond), cfg.Limits.NewFlowsPerSecond),
	}
	g.live.Store(&liveConfig{Config: cfg})
	g.keys.warned.Interval = strangersEvery
	g.auto = newAutoBook(g)
	g.trials = policy.NewTrials(cfg, g.steer)
	g.demotions.log = log
	_, _ = rand.Read(g.id[:])
	g.ctx, g.cancel = context.WithCancel(context.Background())
	if err := g.build(h); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *gateway) build(h Host) error {
	keys, err := config.LoadKeys(g.cfg.Security.PSKFile)
	if err != nil {
		return err
	}
	g.keys.set(keys)
	if g.pool, err = rmb.NewPool(rmb.PoolConfig{
		Limit: int64(g.cfg.Limits.Memory), PeerLimit: max(1, int64(g.cfg.Limits.Memory)/100*int64(g.cfg.Limits.PeerShare)),
	}); err != nil {
		return fmt.Errorf("memory pool: %w", err)
	}
	if err := g.steer.SetProofs(g.cfg.Limits.NewFlowsPerSecond); err != nil {
		return fmt.Errorf("rate of connections that peers begin: %w", err)
	}
	if err := g.startShards(); err != nil {
		return err
	}
	g.openFabrics()
	if g.stack, err = netstack.New(netstack.Config{
		Link: h.Link, Handler: g, Logger: g.log,
		Limits: netstack.Limits{Flows: 2 * g.cfg.Limits.MaxFlows, HalfOpen: peers.HandshakeLimit},
	}); err != nil {
		return err
	}
	if g.accept, err = g.legs.Listen(g.shards[0], g.appAccepted); err != nil {
		return fmt.Errorf("app legs: %w", err)
	}
	g.openDatagrams()
	return nil
}

// startShards makes the event loops. Half of the cores: the other half runs
// the applications. GOMAXPROCS leaves room beside the loops, which hold their
// P while they are busy.
func (g *gateway) startShards() error {
	n := g.cfg.Shards
	if n == 0 {
		n = max(1, runtime.NumCPU()/2)
	}
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
	return nil
}

// openFabrics opens the devices, and starts the loops that drive them.
func (g *gateway) openFabrics() {
	g.fabrics, g.absent = carrier.Open(&carrier.Env{
		Config: g.cfg, Log: g.log, GatewayID: g.id, HostID: g.hostID, Shards: g.shards, Pool: g.pool, Peers: g.peers,
		Addrs: g.addrs, Priority: g.host.Priority, Vacate: g.leaveCarrier,
		PeerDown: func(p *shm.Peer) { g.dgrams.Load().PeerDown(p) },
	})
	for _, s := range g.shards {
		s.Start()
	}
}

// shardFor says which shard serves a flow, for life.
func (g *gateway) shardFor(f *flow) *loop.Shard {
	return g.shards[int(maphash.Comparable(g.seed, f.tuple)%uint64(len(g.shards)))]
}

// newFlow enters a flow into the table; false when the same connection is
// there already or the gateway is going down. A flow of an older connection on
// the tuple is ended first.
func (g *gateway) newFlow(side config.Side, t host.Tuple, isn uint32) (*flow, bool) {
	for {
		g.mu.Lock()
		old := g.flows[t]
		if g.down || old != nil && old.isn == isn {
			g.mu.Unlock()
			return old, false
		}
		if old == nil {
			g.nextID++
			f := &flow{
				g: g, id: g.nextID, side: side, tuple: t, isn: isn, start: time.Now(),
				gone: make(chan struct{}), core: life.New(side),
			}
			f.trial = g.trials.Of(t.Remote.Addr().Unmap(), servicePort(t, side))
			f.noted()
			f.beginShare()
			g.flows[t] = f
			g.mu.Unlock()
			g.noteRoom()
			return f, true
		}
		delete(g.flows, t)
		g.mu.Unlock()
		old.share.End(g.peers, old.peer())
		old.post(old.replaced)
	}
}

// hold keeps close from finishing until g.wg.Done; false means that the gateway
// is going down. Whoever starts a flow's goroutine from outside of one needs it:
// the last Wait has begun when it fails.
func (g *gateway) hold() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.down {
		g.wg.Add(1)
	}
	return !g.down
}

// find returns the live flow of a tuple, or nil.
func (g *gateway) find(t host.Tuple) *flow {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.flows[t]
}

// unlink takes a flow out of the table.
func (g *gateway) unlink(f *flow) {
	g.mu.Lock()
	if g.flows[f.tuple] == f {
		delete(g.flows, f.tuple)
		f.share.End(g.peers, f.peer())
	}
	g.mu.Unlock()
	g.noteRoom()
}

// all returns the live flows.
func (g *gateway) all() []*flow {
	g.mu.Lock()
	defer g.mu.Unlock()
	fs := make([]*flow, 0, len(g.flows))
	for _, f := range g.flows {
		fs = append(fs, f)
	}
	return fs
}

// admit decides whether the gateway has room for a flow that is in the table.
func (g *gateway) admit(f *flow) negotiate.Reason {
	g.mu.Lock()
	n := len(g.flows)
	g.mu.Unlock()
	switch {
	case g.stopping.Load():
		return negotiate.ReasonDrained
	case n > g.flowLimit():
		return negotiate.ReasonFlowLimit
	}
	if f.side == config.SideServer {
		now := time.Now()
		scarce := g.rate.TokensAt(now) < float64(g.rate.Burst()-g.peers.PerPeer())
		if r := g.peers.Admit(f.peer(), scarce, now); r != negotiate.ReasonNone {
			return r
		}
	}
	if !g.rate.Allow() {
		return negotiate.ReasonRateLimit
	}
	return negotiate.ReasonNone
}

// appAccepted gives an accepted app leg to its flow.
func (g *gateway) appAccepted(fd int, t host.Tuple) {
	leg := newAppLeg(fd, t)
	f := g.find(t)
	if f == nil || f.side != config.SideClient {
		leg.reset()
		return
	}
	f.post(func() { f.appAccepted(leg) })
}

// remember keeps what a verdict says about the peer where the next decision
// is made: in the maps of the steering. What a trial was refused says nothing
// about others, and what ran out of time here while this gateway was late itself,
// nothing about the peer.
func (g *gateway) remember(f *flow, v negotiate.Verdict) {
	if !g.policy.Remembers(v) || f.trial != nil || f.outdated || g.pulse.WasLate(f.start, time.Now()) {
		return
	}
	addr, port := f.tuple.Remote.Addr(), f.tuple.Remote.Port()
	if f.side == config.SideServer || g.policy.ScopeOf(v.Reason) == negotiate.ScopePeer {
		port = 0
	}
	now := time.Now()
	ttl := g.peers.Strike(addr, port, v.Reason, g.policy, now).Until.Sub(now)
	if ttl <= 0 {
		return
	}
	g.log.Debug("remember peer", "peer", addr, "port", port, "reason", v.Reason, "ttl", ttl)
	if err := g.steer.Remember(addr, port, uint8(v.Reason), ttl); err != nil {
		g.log.Warn("remember peer", "peer", addr, "reason", v.Reason, "error", err)
	}
}

// onEvent is called for every decision of the programs.
func (g *gateway) onEvent(e ebpf.Event) {
	t := host.Tuple(e.Tuple)
	switch e.Kind {
	case ebpf.EventReplaced:
		if f := g.find(t); f != nil && f.isn == e.ISN {
			f.post(func() { f.do(f.core.GivenBack(e.Reason != 0)) })
		}
	case ebpf.EventNative:
		g.nativeDecision(t, e)
	case ebpf.EventDatagram:
		g.dgrams.Load().Asked(e.Tuple)
	case ebpf.EventProbe, ebpf.EventTimeout:
		if f := g.find(t); f != nil && f.isn == e.ISN {
			f.post(func() { f.watched(e) })
		}
	}
}

// nativeDecision records a connection that stayed native.
func (g *gateway) nativeDecision(t host.Tuple, e ebpf.Event) {
	g.mu.Lock()
	g.nextID++
	id := g.nextID
	g.mu.Unlock()
	r := negotiate.Reason(e.Reason)
	past := g.native
	if e.Proto == ebpf.ProtoUDP {
		g.count.nativeDatagrams(r, sideOf(e.Side))
		past = g.udp.native
	}
	past.Add(admin.ConnInfo{
		ID: id, Proto: string(protoOf(e.Proto)), Side: sideOf(e.Side), Local: t.Local, Remote: t.Remote,
		State: life.Native.String(), Reason: r.String(), DecidedBy: decidedBy(remoteReason(r)),
		AgeSeconds: max(0, time.Since(e.At).Seconds()), End: admin.EndNative, EndedAt: e.At,
	})
}

func protoOf(p ebpf.Proto) config.Proto {
	if p == ebpf.ProtoUDP {
		return config.ProtoUDP
	}
	return config.ProtoTCP
}

func sideOf(s ebpf.Side) config.Side {
	if s == ebpf.SideServer {
		return config.SideServer
	}
	return config.SideClient
}

// remoteReason reports whether the programs learned a reason from the peer or
// the path.
func remoteReason(r negotiate.Reason) bool {
	switch r {
	case negotiate.ReasonPeerNoOption, negotiate.ReasonOptionMirrored, negotiate.ReasonOptionBlackholed,
		negotiate.ReasonClientGone, negotiate.ReasonOptionRejected, negotiate.ReasonPeerRefused, negotiate.ReasonOfferUnanswered:
		return true
	default:
		return false
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
	g.dgrams.Load().Close()
	close(g.draining)
	for _, f := range g.all() {
		f.post(func() { f.drain(negotiate.ReasonDrained) })
	}
	if g.stack != nil { // the loops run
		g.catchUp()
	}
	if g.accept != nil {
		_ = g.accept.Close()
	}
	g.cancel()
	g.wg.Wait()
	if g.stack != nil {
		_ = g.stack.Close()
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
	for _, fb := range g.fabrics {
		errs = append(errs, fb.Close())
	}
	for _, s := range g.shards {
		s.CloseFDs()
	}
	if err := errors.Join(errs...); err != nil {
		g.log.Warn("close devices", "error", err)
	}
}
