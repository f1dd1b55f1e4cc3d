package carrier

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs"
)

// adapter is one open port of an adapter, with its vectors driven by the shards.
type adapter struct {
	env     *Env
	kind    report.DeviceKind
	name    string
	dev     AdapterPort
	drivers []verbs.Driver
	lanes   *loop.Lanes
	reaper  *loop.Reaper
	look    sync.Mutex                     // held while the port is queried
	port    atomic.Pointer[verbs.PortAttr] // as last seen
	refusal atomic.Pointer[string]         // why memory is refused; nil: it is not

	moved chan struct{} // not empty: the network around the port may have changed
	calls *loop.Calls   // calls that make or connect a pair, or set up a peer

	copying atomic.Int64 // tails that shards have still to copy

	stop context.CancelFunc // stops the goroutines
	ctx  context.Context
	done sync.WaitGroup
	fill chan filling

	domains sync.Mutex // held while the domain of a peer is made

	mu        sync.Mutex // guards everything below
	leaving   bool       // nothing new may be made on it
	peers     map[netip.Addr]*hwPeer
	links     map[verbs.QP]*Link
	tails     map[*Link]*hwTail // of connections that continued without their link
	pairs     int               // queue pairs of connections
	datagrams int               // queue pairs for datagrams, including those being made
	stats     hwStats
}

// hwTail is the sent data that a connection which left its link may still have to retransmit.
type hwTail struct{ copied bool }

// hwStats are the counters of an adapter; see describeDevice.
type hwStats struct {
	QPs, CQs, Peers, Pooled          int
	PairsMade, PoolHits, PoolMisses  uint64
	Refused, RefusedMemory, Demotion uint64
}

const (
	// fillJobs bounds the queued requests for pairs made in advance.
	fillJobs = 64
	// makersMost bounds the pairs made or connected at a time. An adapter does no more in
	// parallel, and each call holds a thread: a burst of new connections would leave the
	// shards without a processor.
	makersMost = 2
)

// newAdapter opens a port and gives each shard its vector. On failure everything is undone.
func (h *Hardware) newAdapter(name string) (*adapter, error) {
	dev, err := h.host.Open(name, len(h.env.Shards))
	if err != nil {
		return nil, err
	}
	port := dev.Port()
	if err := h.suitable(dev.Attr(), port); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	a := &adapter{
		env: h.env, kind: h.kind, name: name, dev: dev, lanes: loop.NewLanes(dev, len(h.env.Shards)), fill: make(chan filling, fillJobs),
		moved: make(chan struct{}, 1), calls: loop.NewCalls(makersMost, h.env.Config.Limits.HandshakeTimeout, h.env.Log.With("device", name)),
		peers: map[netip.Addr]*hwPeer{}, links: map[verbs.QP]*Link{}, tails: map[*Link]*hwTail{},
	}
	a.port.Store(&port)
	for i, s := range h.env.Shards {
		drv, err := dev.Drive(i, s)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("vector %d: %w", i, err), a.shut())
		}
		a.drivers = append(a.drivers, drv)
	}
	for i, s := range h.env.Shards {
		s.Post(func() { s.AddDriver(a.drivers[i]) })
	}
	a.ctx, a.stop = context.WithCancel(context.Background())
	a.reaper = loop.NewReaper()
	a.done.Go(a.fillPools)
	a.done.Go(func() { h.attend(a) })
	a.done.Go(func() { h.lookAround(a) })
	return a, nil
}

// suitable returns why a port that could be opened cannot carry. Opening it has already
// required RDMA WRITE with immediate.
func (h *Hardware) suitable(attr verbs.DeviceAttr, port verbs.PortAttr) error {
	depth := max(linkCap().MaxSendWR, linkCap().MaxRecvWR)
	switch {
	case port.LinkLayer != h.layer:
		return fmt.Errorf("link layer %v: %w", port.LinkLayer, verbs.ErrNotSupported)
	case attr.MaxCQE < linkNeed():
		return fmt.Errorf("completion queues of %d entries, want %d: %w", attr.MaxCQE, linkNeed(), verbs.ErrNotSupported)
	case attr.MaxQPWR < depth:
		return fmt.Errorf("queue pairs of %d work requests, want %d: %w", attr.MaxQPWR, depth, verbs.ErrNotSupported)
	}
	return nil
}

// enterPeer returns the peer, counting one more connection and queue pair. It may block.
func (a *adapter) enterPeer(remote netip.Addr) (*hwPeer, error) {
	if p, err := a.enter(remote, nil); p != nil || err != nil {
		return p, err
	}
	return loop.Make(a.calls, func() (*hwPeer, error) {
		a.domains.Lock() // concurrent calls are mostly for the same peer
		defer a.domains.Unlock()
		if p, err := a.enter(remote, nil); p != nil || err != nil {
			return p, err
		}
		far, err := newFarPeer(a.env, a.dev, remote)
		if err != nil {
			return nil, a.explain(err)
		}
		fresh := &hwPeer{farPeer: far, a: a, pools: make([]pool, len(a.env.Shards))}
		p, err := a.enter(remote, fresh)
		if err != nil {
			a.closePeer(fresh)
		}
		return p, err
	}, func(p *hwPeer) { a.leavePair(); a.leavePeer(p) })
}

// enter is enterPeer for a known peer. If the peer is unknown, it enters fresh, or returns
// nil if fresh is nil.
func (a *adapter) enter(remote netip.Addr, fresh *hwPeer) (*hwPeer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.leaving:
		return nil, ErrYielded
	case a.calls.Silent():
		return nil, loop.ErrNoAnswer
	case a.pairs >= a.env.Config.Limits.HWFlows:
		a.stats.Refused++
		return nil, ErrFull
	}
	p := a.peers[remote]
	if p == nil {
		if fresh == nil {
			return nil, nil
		}
		p = fresh
		a.peers[remote] = p
	}
	p.users++
	a.pairs++
	return p, nil
}

// leavePeer records that a connection of the peer is over.
func (a *adapter) leavePeer(p *hwPeer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.users--
	p.idle = time.Now()
}

// leavePair records that a queue pair of a connection is gone.
func (a *adapter) leavePair() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pairs--
}

// add enters a link; forget removes it.
func (a *adapter) add(l *Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.links[l.QP] = l
}

func (a *adapter) forget(l *Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.links, l.QP)
}

func (a *adapter) isLeaving() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leaving
}

// linked returns the links.
func (a *adapter) linked() []*Link {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.links))
}

// linkOf returns the link of a queue pair, or nil.
func (a *adapter) linkOf(qp verbs.QP) *Link {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.links[qp]
}

// count updates the counters.
func (a *adapter) count(fn func(*hwStats)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn(&a.stats)
}

// keepTail records that sent data of a link may have to be retransmitted. If the adapter is
// leaving, its memory cannot wait for that: the data is copied and the memory is freed with
// the queue pair. It must be called on the shard.
func (a *adapter) keepTail(l *Link) (copied bool) {
	a.mu.Lock()
	copied = a.leaving
	a.tails[l] = &hwTail{copied}
	a.stats.Demotion++
	a.mu.Unlock()
	if copied {
		l.EP.DetachSent()
	}
	return copied
}

// dropTail records that nothing of a link will be retransmitted any more.
func (a *adapter) dropTail(l *Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.tails[l]
	delete(a.tails, l)
	a.reaper.Put(func() {
		if !t.copied {
			a.freeSent(l)
		}
		a.leavePeer(l.peer.(*hwLink).hwPeer)
	})
}

// freeSent frees the send buffer of a link. The reaper calls it after closing the queue pair.
func (a *adapter) freeSent(l *Link) {
	if l.peer.(*hwLink).stuck {
		return
	}
	if err := l.EP.ReleaseSent(); err != nil {
		a.env.Log.Warn("release memory", "flow_id", l.of.ID, "error", err)
	}
}

// copyTails copies all tails out of registered memory, and then frees that.
func (a *adapter) copyTails() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for l, t := range a.tails {
		if !t.copied {
			t.copied = true
			a.copying.Add(1)
			l.Shard.Post(func() {
				defer a.copying.Add(-1)
				l.Shard.WorksFor(l.Owner())
				l.EP.DetachSent()
				a.reaper.Put(func() { a.freeSent(l) })
			})
		}
	}
}

// known returns the peers.
func (a *adapter) known() (peers []*farPeer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.peers {
		peers = append(peers, p.farPeer)
	}
	return peers
}

// forgetIdle frees what peers without connections hold.
func (a *adapter) forgetIdle(now time.Time) {
	a.drainPools(now, false)
	a.mu.Lock()
	defer a.mu.Unlock()
	for remote, p := range a.peers {
		// A call that hangs may still be using the peer.
		if p.users == 0 && now.Sub(p.idle) >= idlePeers && p.poolsEmpty() && !a.calls.Silent() {
			delete(a.peers, remote)
			a.reaper.Put(func() { a.closePeer(p) })
		}
	}
}

// poolsEmpty reports whether no pair is pooled or being made. The caller holds adapter.mu.
func (p *hwPeer) poolsEmpty() bool {
	for i := range p.pools {
		if len(p.pools[i].ready)+p.pools[i].under > 0 {
			return false
		}
	}
	return true
}

func (a *adapter) closePeer(p *hwPeer) {
	if err := p.close(); err != nil {
		a.env.Log.Warn("close peer", "device", a.name, "peer", p.remote, "error", err)
	}
}

// close closes the adapter, which no link may use any more. running: the shards are still
// running.
func (a *adapter) close(running bool) error {
	a.mu.Lock()
	a.leaving = true
	a.mu.Unlock()
	a.stop()
	a.calls.Close()
	a.done.Wait()
	a.drainPools(time.Time{}, true)
	a.mu.Lock()
	for _, p := range a.peers {
		a.reaper.Put(func() { a.closePeer(p) })
	}
	clear(a.peers)
	a.mu.Unlock()
	a.reaper.Close()
	for i, s := range a.env.Shards {
		if !running {
			break
		}
		s.Call(func() {
			for _, ln := range a.lanes.OfShard(s) {
				s.DropQueue(ln.Queue)
			}
			s.DropDriver(a.drivers[i])
		})
	}
	return a.shut()
}

// shut closes the queues, the vectors and the device.
func (a *adapter) shut() error {
	var errs []error
	for _, ln := range a.lanes.All() {
		errs = append(errs, ln.Close())
	}
	for _, drv := range a.drivers {
		errs = append(errs, drv.Close())
	}
	return errors.Join(append(errs, a.dev.Close())...)
}
