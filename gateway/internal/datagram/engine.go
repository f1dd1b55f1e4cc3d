package datagram

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/shm"
)

const (
	// tickEvery is how often proofs, peers and flows are checked.
	tickEvery = 50 * time.Millisecond
	// sweepEvery is how often idle flows are looked for.
	sweepEvery = time.Second
	// readBudget is the number of datagrams of local programs read per turn.
	readBudget = 128
	// drainTurns bounds how many turns' worth of datagrams a stop returns to the network:
	// more than the app TUN holds.
	drainTurns = 64
	// toldMost bounds how long a stop waits for all peers to be told.
	toldMost = 100 * time.Millisecond
	// routeFor is how long the route to a peer is cached.
	routeFor = 3 * time.Second
	// routeAgain is how long a missing route is cached.
	routeAgain = 100 * time.Millisecond
)

// engine belongs to the loop of one shard, which it joins as a driver: in its turns it reads the
// app TUN, writes to it what peers have sent, and watches the peers. It takes no lock and
// allocates nothing per datagram. [Engine] posts to it; the table of flows and the counters are
// also read by others.
//
//	local program ─► app TUN ─► slot ─► port (UD) ─► peer's port ─► its app TUN ─► its program
type engine struct {
	cfg     Config
	s       *loop.Shard
	steer   Steering
	gateway Gateway
	log     *slog.Logger
	now     time.Time // start of this turn

	readable bool // no EAGAIN since the last edge
	held     heldDatagram
	out      *slots
	asm      asmPool
	ports    map[*port]struct{} // including those being closed
	peers    map[netip.Addr]*peer
	ways     map[addrPair]knownWays
	routes   map[addrPair]route
	query    *resolve.Resolve // the query being answered
	nextTick time.Time
	swept    time.Time
	resolve  *resolve.Resolver
	sockets  *sockets
	keeper   *keeper
	making   making
	closing  sync.WaitGroup // ports being closed
	count    counters
	notices  map[*link]negotiate.Reason // notices to be sent to peers
	told     chan struct{}              // closed when notices is empty; nil: nothing waits for that
	quiet    negotiate.Reason           // why nothing new is carried; ReasonNone: it is
	stopped  bool
	flows    flowTable
}

var _ verbs.Driver = (*engine)(nil)

// route is the network device through which a host is reached.
type route struct {
	ifindex int
	err     error
	until   time.Time
}

// openEngine starts an engine on its shard.
func openEngine(cfg Config) (*engine, error) {
	e := &engine{
		cfg: cfg, s: cfg.Shard, steer: cfg.Steering, gateway: cfg.Gateway, log: cfg.Log, out: newSlots(),
		ports: map[*port]struct{}{}, peers: map[netip.Addr]*peer{}, ways: map[addrPair]knownWays{},
		routes: map[addrPair]route{}, notices: map[*link]negotiate.Reason{}, readable: true, now: time.Now(),
	}
	e.resolve = e.newResolver()
	var err error
	if e.sockets, err = openSockets(e); err != nil {
		return nil, err
	}
	e.s.Call(func() {
		if err = e.s.WatchReads(cfg.TUN, func(uint32) { e.readable = true }); err == nil {
			e.s.AddDriver(e)
		}
	})
	if err != nil {
		e.sockets.close()
		return nil, fmt.Errorf("queue of A: %w", err)
	}
	e.keeper = newKeeper(e)
	e.sockets.start()
	return e, nil
}

// unlessStopped calls fn unless the engine has stopped.
func (e *engine) unlessStopped(fn func(e *engine)) {
	if !e.stopped {
		fn(e)
	}
}

// close stops everything except the queue pairs.
func (e *engine) close() {
	e.drain()
	e.sockets.close()
	e.keeper.close()
	e.s.Call(func() {
		for range drainTurns { // back to the network, unchanged
			e.readTUN()
		}
		e.stopped = true
		e.s.Unwatch(e.cfg.TUN)
	})
}

// drain makes everything native and waits until all peers have been told, for at most
// toldMost.
func (e *engine) drain() {
	told := make(chan struct{})
	e.s.Call(func() {
		if e.stopped {
			close(told)
			return
		}
		e.told = told
		e.quiesce(negotiate.ReasonDrained)
		e.sendNotices()
	})
	select {
	case <-told:
	case <-time.After(toldMost):
	}
}

// closePorts closes the queue pairs. It must be called on the shard; closing is done
// when nothing of them is left.
func (e *engine) closePorts() {
	for p := range e.ports {
		e.closePort(p)
	}
}

func (e *engine) Progress(now time.Time) (worked bool, next time.Time) {
	e.now = now
	if e.stopped {
		return false, time.Time{}
	}
	if len(e.notices) > 0 || e.told != nil {
		e.sendNotices()
	}
	worked = e.readTUN()
	if !now.Before(e.nextTick) {
		e.nextTick = now.Add(tickEvery)
		e.tick()
	}
	if e.held.n > 0 {
		return worked, now.Add(time.Millisecond)
	}
	return worked, e.nextTick
}

// Flush implements verbs.Driver. The devices flush themselves.
func (*engine) Flush() {}

// Arm implements verbs.Driver. While all slots are in use the app TUN is not read; a
// completion wakes the loop.
func (e *engine) Arm() bool { return !e.readable || e.held.n > 0 || e.stopped || !e.mayRead() }

func (*engine) Disarm() {}

func (*engine) Close() error { return nil }

// tick checks peers and flows.
func (e *engine) tick() {
	e.tickResolver()
	if e.now.Sub(e.swept) >= sweepEvery {
		e.swept = e.now
		e.sweep()
	}
}

// sweep ends idle flows and reassemblies, and expires routes.
func (e *engine) sweep() {
	e.queryCounts()
	for _, p := range e.peers {
		e.expireFlows(p)
		for _, l := range p.links {
			l.asm.expire(e.now)
			e.asmDropped(l)
		}
	}
	for k, r := range e.routes {
		if e.now.After(r.until) {
			delete(e.routes, k)
		}
	}
}

// asmDropped counts the datagrams that a link's reassembly has dropped.
func (e *engine) asmDropped(l *link) {
	for ; l.asm.dropped > 0; l.asm.dropped-- {
		e.count.drop(report.DropReassembly)
	}
}

// suspension returns how long a reason keeps datagrams native.
func (e *engine) suspension(r negotiate.Reason) time.Duration {
	return max(e.cfg.Policy.TTL(r, 1), nativeEvery)
}

// Engine carries the datagrams of a gateway's host. Its methods are safe for concurrent use,
// but the shard must not call those that wait for it. A nil Engine carries nothing, and its
// methods do nothing.
type Engine struct{ core *engine }

// Open starts an engine on its shard, which must be running. It waits for the shard.
func Open(cfg Config) (*Engine, error) {
	e, err := openEngine(cfg)
	if err != nil {
		return nil, err
	}
	return &Engine{core: e}, nil
}

// post runs fn on the shard, unless the engine has stopped.
func (d *Engine) post(fn func(e *engine)) {
	if d != nil {
		d.core.s.Post(func() { d.core.unlessStopped(fn) })
	}
}

// call runs fn on the shard, unless the engine has stopped, and waits for it.
func (d *Engine) call(fn func(e *engine)) {
	if d != nil {
		d.core.s.Call(func() { d.core.unlessStopped(fn) })
	}
}

// Port returns the datagram port to announce to peers, or 0 without an engine.
func (d *Engine) Port() uint16 {
	if d == nil {
		return 0
	}
	return d.core.cfg.Port
}

// Asked handles a question of the programs about the peer of a tuple.
func (d *Engine) Asked(t ebpf.Tuple) {
	d.post(func(e *engine) { e.want(addrPair{t.Local.Addr(), t.Remote.Addr()}) })
}

// News reports what a connection's handshake said: the datagram port of the peer gateway, or
// 0 if it has none.
func (d *Engine) News(t ebpf.Tuple, port uint16, gateway [16]byte) {
	if port != 0 {
		d.post(func(e *engine) { e.news(t.Local.Addr(), netip.AddrPortFrom(t.Remote.Addr(), port), gateway) })
	}
}

// PeerDown reports that a peer that shared memory has hung up.
func (d *Engine) PeerDown(p *shm.Peer) { d.post(func(e *engine) { e.peerDown(p) }) }

// leaveMost bounds the wait for a device to be left: a failed device may hang.
const leaveMost = 500 * time.Millisecond

// LeaveDevice stops the use of a device and waits as long as that takes on a healthy one.
// Flows that it carried go native.
func (d *Engine) LeaveDevice(dev verbs.Device) {
	var left []*port
	d.call(func(e *engine) {
		for p := range e.ports {
			if p.dev == dev {
				e.portLost(p)
				left = append(left, p)
			}
		}
	})
	late := time.After(leaveMost)
	for _, p := range left {
		select {
		case <-p.closed:
		case <-late:
			return
		}
	}
}

// queueNeed is the number of completions that a queue pair on a network may have pending.
const queueNeed = sendDepth + receiveDepth

// SetKeys replaces the keys.
func (d *Engine) SetKeys(keys negotiate.Keys) {
	d.post(func(e *engine) { e.act(e.resolve.SetKeys(keys)) })
}

// Flush forgets everything that keeps datagrams native.
func (d *Engine) Flush() { d.post(func(e *engine) { e.act(e.resolve.Flush()) }) }

// Quiesce makes all datagrams native for a reason and tells the peers. Datagrams in flight
// are still delivered. ReasonDrained is permanent. Quiesce waits for the shard.
func (d *Engine) Quiesce(r negotiate.Reason) { d.call(func(e *engine) { e.quiesce(r) }) }

// Resume undoes Quiesce. It waits for the shard.
func (d *Engine) Resume() { d.call(func(e *engine) { e.resume() }) }

// Flows describes all flows.
func (d *Engine) Flows() []report.ConnInfo {
	if d == nil {
		return nil
	}
	return d.core.flows.infos(time.Now())
}

// CountFlows adds the number of flows of each peer.
func (d *Engine) CountFlows(to map[netip.Addr]int) {
	if d != nil {
		d.core.flows.countPeers(to)
	}
}

// Snapshot sets the datagram counters; without an engine they are empty.
func (d *Engine) Snapshot(s *report.Snapshot) {
	emptySnapshot(s)
	if d != nil {
		d.core.count.snapshot(s)
		d.core.flows.snapshot(s.UDP.Flows)
	}
}

// Close stops the engine: datagrams of local programs are native from here on. The queue
// pairs stay until Release. Close waits for the shard.
func (d *Engine) Close() {
	if d != nil {
		d.core.close()
	}
}

// Release closes the queue pairs of a closed engine, after its shard has halted and before
// the devices are closed.
func (d *Engine) Release() {
	if d != nil {
		d.core.s.Call(d.core.closePorts) // after answers posted meanwhile
		await(&d.core.closing)
	}
}

// Leave closes the engine and its queue pairs while the shard keeps running. It waits for the
// shard. Queue pairs of an adapter that hangs stay.
func (d *Engine) Leave() {
	if d == nil {
		return
	}
	d.core.close()
	d.core.s.Call(func() {
		d.core.closePorts()
		d.core.s.DropDriver(d.core)
	})
	await(&d.core.closing)
}

// closeMost bounds the wait for work on adapters when an engine ends: one that hangs must not
// keep a successor waiting.
const closeMost = 2 * time.Second

// await waits for goroutines that may be in calls of an adapter, for at most closeMost.
func await(work *sync.WaitGroup) {
	over := make(chan struct{})
	go func() {
		work.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(closeMost):
	}
}
