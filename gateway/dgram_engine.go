package gateway

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/internal/datagram"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
)

const (
	// dgramTick is how often proofs, peers and flows are looked at.
	dgramTick = 50 * time.Millisecond
	// dgramSweep is how often flows are looked for that are idle.
	dgramSweep = time.Second
	// dgramReadBudget is how many datagrams of local programs one turn takes.
	dgramReadBudget = 128
	// dgramDrain is how many turns' shares a stop gives back at most: more than A
	// holds.
	dgramDrain = 64
	// routeFor is how long the way to a peer is believed.
	routeFor = 3 * time.Second
	// routeAgain is how long it is believed that there is none.
	routeAgain = 100 * time.Millisecond
)

// dgramEngine carries the datagrams of unmodified UDP programs. All of it
// belongs to the loop of one shard, which it joins as a driver: A is read, what
// peers have sent is written to A, and peers are watched in the turns of that
// loop. Nothing here takes a lock or allocates per datagram. Others reach it by
// Shard.Post; mu is for those who list flows.
//
//	local program ─► A ─► slot ─► port (UD) ─► peer's port ─► its A ─► its program
type dgramEngine struct {
	cfg     datagram.Config
	s       *loop.Shard
	steer   datagram.Steering
	gateway datagram.Gateway
	log     *slog.Logger
	now     time.Time // of this turn

	readable bool // no EAGAIN since the last edge
	held     dgramHeld
	out      *dgramSlots
	asm      asmPool
	ports    map[*dgramPort]struct{}
	peers    map[netip.Addr]*dgramPeer
	ways     map[dgramPair]dgramWays
	missed   map[dgramPair]time.Time // when there was no way
	routes   map[dgramPair]dgramRoute
	query    *resolve.Resolve // being answered
	nextTick time.Time
	swept    time.Time
	resolve  *resolve.Resolver
	sockets  *dgramSockets
	keeper   *dgramKeeper
	count    *dgramCounters
	quiet    negotiate.Reason // why nothing new is carried; none: it is
	stopped  bool

	mu    sync.Mutex // guards, against readers elsewhere, that flows change
	flows map[ebpf.Tuple]*dgramFlow
}

// dgramRoute is the device by which a host is reached.
type dgramRoute struct {
	ifindex int
	err     error
	until   time.Time
}

// openDgramEngine starts an engine on its shard, which runs.
func openDgramEngine(cfg datagram.Config) (*dgramEngine, error) {
	e := &dgramEngine{
		cfg: cfg, s: cfg.Shard, steer: cfg.Steering, gateway: cfg.Gateway, log: cfg.Log, out: newDgramSlots(),
		ports: map[*dgramPort]struct{}{}, peers: map[netip.Addr]*dgramPeer{}, ways: map[dgramPair]dgramWays{}, missed: map[dgramPair]time.Time{},
		routes: map[dgramPair]dgramRoute{}, flows: map[ebpf.Tuple]*dgramFlow{},
		count: newDgramCounters(), readable: true, now: time.Now(),
	}
	e.resolve = e.newResolver()
	var err error
	if e.sockets, err = openDgramSockets(e); err != nil {
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
	e.keeper = newDgramKeeper(e)
	e.sockets.start()
	return e, nil
}

// port is what peers are told; 0 without an engine.
func (e *dgramEngine) port() uint16 {
	if e == nil {
		return 0
	}
	return e.cfg.Port
}

// close ends the engine: local programs go on natively. The queue pairs stay
// until closePorts.
func (e *dgramEngine) close() {
	if e == nil {
		return
	}
	e.quiesce(negotiate.ReasonDrained)
	e.sockets.close()
	e.keeper.close()
	e.s.Call(func() {
		for range dgramDrain { // back to the network, as it is
			e.readTUN()
		}
		e.stopped = true
		e.s.Unwatch(e.cfg.TUN)
	})
}

// leave ends the engine and its queue pairs while the shard goes on.
func (e *dgramEngine) leave() {
	if e == nil {
		return
	}
	e.close()
	e.s.Call(func() {
		e.closePorts()
		e.s.DropDriver(e)
	})
}

// closePorts ends the queue pairs; the shard has stopped, the devices have not.
func (e *dgramEngine) closePorts() {
	if e == nil {
		return
	}
	for p := range e.ports {
		e.closePort(p)
	}
}

// Progress implements verbs.Driver.
func (e *dgramEngine) Progress(now time.Time) (worked bool, next time.Time) {
	e.now = now
	if e.stopped {
		return false, time.Time{}
	}
	worked = e.readTUN()
	if !now.Before(e.nextTick) {
		e.nextTick = now.Add(dgramTick)
		e.tick()
	}
	if e.held.n > 0 {
		return worked, now.Add(time.Millisecond)
	}
	return worked, e.nextTick
}

// Flush implements verbs.Driver: the devices have their own.
func (*dgramEngine) Flush() {}

// Arm implements verbs.Driver.
func (e *dgramEngine) Arm() bool { return !e.readable || e.held.n > 0 || e.stopped }

// Disarm implements verbs.Driver.
func (*dgramEngine) Disarm() {}

// Close implements verbs.Driver.
func (*dgramEngine) Close() error { return nil }

// tick looks after peers and flows.
func (e *dgramEngine) tick() {
	e.tickResolver()
	if e.now.Sub(e.swept) >= dgramSweep {
		e.swept = e.now
		e.sweep()
	}
}

// sweep ends what is idle.
func (e *dgramEngine) sweep() {
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

// asmDropped counts what the reassembly of a link has given up.
func (e *dgramEngine) asmDropped(l *dgramLink) {
	for ; l.asm.dropped > 0; l.asm.dropped-- {
		e.count.drop(admin.DropReassembly)
	}
}

// suspension is how long datagrams stay native for a reason.
func (e *dgramEngine) suspension(r negotiate.Reason) time.Duration {
	return max(e.cfg.Policy.TTL(r, 1), nativeEvery)
}
