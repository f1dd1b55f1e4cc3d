package carrier

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

const (
	// hwTimeout and hwRetries: an adapter gives up a peer that is silent for eight times
	// 4.096 µs << 14 = 67 ms; adapters take up to four times as long.
	hwTimeout = 14
	// A peer in software may have to wait for a processor: softTimeout is for it.
	hwRetries = 7
	// hwHops is the hop limit of packets of RoCEv2.
	hwHops = 64
)

// Hardware is a carrier on adapters: what the host's RDMA adapters of one link layer do
// themselves, RoCEv2 or InfiniBand. Making, connecting and closing a queue pair takes an
// adapter milliseconds, so no shard does: goroutines of the adapter do, and post what has
// become of it.
type Hardware struct {
	far
	env   *Env
	kind  report.DeviceKind
	layer verbs.LinkLayer
	net   network
	host  Adapters
	work  sync.WaitGroup // links that are being made or connected
	turns []sync.Mutex   // by shard: held for what follows that. A shard that has ended has no thread

	mu       sync.Mutex // guards everything below
	shut     bool
	adapters []*adapter           // open, by name
	late     []*adapter           // out of use: to be closed when the last call of them returns
	left     map[string]departure // that are not open
	routes   routeCache
}

// Adapters finds and opens the RDMA adapters of a host.
type Adapters interface {
	// List names the ports of the adapters that have the link layer, as the adapter, a slash
	// and the number.
	List(layer verbs.LinkLayer) ([]string, error)
	// Open opens a port. [verbs.ErrNotSupported] means that it is of no use to a gateway.
	Open(name string, vectors int) (AdapterPort, error)
	// Changed is sent to when adapters may have come or gone, until stop is called. It may
	// be nil.
	Changed() (changed <-chan struct{}, stop func())
}

// AdapterPort is a port of an adapter, open.
type AdapterPort interface {
	verbs.Device
	// Counters are what the device counts: a flat struct of numbers.
	Counters() any
	// PKey returns an entry of the port's table of partitions.
	PKey(index int) (uint16, error)
}

// network is how queue pairs of adapters are named on one link layer. lead may block.
type network interface {
	// gidOf is the GID by which a port has the own address of a connection, which leaves by a
	// route; zero: no port has it.
	gidOf(local netip.Addr, by route) (verbs.GID, error)
	// lead finds the way of a link to its peer, with what the path takes.
	lead(r *Request, hl *hwLink) error
	// describe says where the queue pair of a link is.
	describe(hl *hwLink, qpn uint32) negotiate.CarrierOffer
	// check reports that a queue pair is not where the connection leads.
	check(r *Request, hl *hwLink, to *negotiate.CarrierOffer) error
	// attr is how the queue pair of a link is connected to the peer's.
	attr(hl *hwLink, to *negotiate.CarrierOffer) verbs.QPAttr
	// changed says that the network around a port may have changed. It may block until the
	// adapter closes.
	changed(a *adapter)
	// close ends it.
	close()
}

// hwLink is what Hardware knows of a link.
type hwLink struct {
	*hwPeer
	lane   *loop.Lane
	gid    verbs.GIDEntry // of this end
	index  uint8          // of gid in the adapter's table
	lid    uint16         // of the port; InfiniBand
	global bool           // the port needs a global header; InfiniBand
	psn    uint32
	mtu    verbs.MTU   // the most the path takes as far as this end knows
	way    rdmacm.Path // InfiniBand
	pkey   uint16      // of this end; InfiniBand
	stuck  bool        // its queue pair could not be closed; the reaper's
}

// openHW opens the adapters whose link layer is Ethernet.
func openHW(env *Env) (Provider, error) {
	return openAdapters(env, report.DeviceHW, verbs.LinkLayerEthernet, func(h *Hardware) network { return &ethernet{env} })
}

// openIB opens those whose link layer is InfiniBand.
func openIB(env *Env) (Provider, error) {
	return openAdapters(env, report.DeviceIB, verbs.LinkLayerInfiniBand, newInfiniBand)
}

func openAdapters(env *Env, kind report.DeviceKind, layer verbs.LinkLayer, net func(*Hardware) network) (Provider, error) {
	h := &Hardware{
		far: newFar(), env: env, kind: kind, layer: layer, host: env.adapters(), left: map[string]departure{},
		turns: make([]sync.Mutex, len(env.Shards)),
	}
	h.net = net(h)
	if err := h.scan(); err != nil {
		h.net.close()
		return nil, err
	}
	h.done.Go(func() { h.watcher.run(h.stop, h.known, h.forgetIdle) })
	h.done.Go(h.tend)
	return h, nil
}

// Kind implements Provider.
func (h *Hardware) Kind() negotiate.CarrierKind {
	if h.layer == verbs.LinkLayerInfiniBand {
		return negotiate.CarrierIB
	}
	return negotiate.CarrierHW
}

// HasAdapter implements Adapted.
func (h *Hardware) HasAdapter() bool { return len(h.open()) > 0 }

// Offer implements Provider.
func (h *Hardware) Offer(r Request) (*Link, negotiate.CarrierOffer, error) {
	l, err := h.newLink(r, nil)
	if err != nil {
		return nil, negotiate.CarrierOffer{}, err
	}
	offer := h.describe(l)
	offer.Mixed = h.env.mayMix(&r, offer.RoCE.UDPPort)
	return l, offer, nil
}

// OffersAtOnce implements Prompt: without adapters there is nothing to offer, nor to ask about those that are not open.
func (h *Hardware) OffersAtOnce(*Request) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.adapters) == 0 && (len(h.left) == 0 || h.layer != verbs.LinkLayerInfiniBand)
}

// Answer implements Provider.
func (h *Hardware) Answer(r Request, from negotiate.CarrierOffer, _ *negotiate.Proposal, done Answered) {
	var l *Link
	var offer negotiate.CarrierOffer
	h.beside(r, func() error {
		made, err := h.newLink(r, &from)
		if err != nil {
			return err
		}
		l = made
		from, offer = l.answerTo(from, h.describe(l))
		if offer.Mixed && !h.env.mayMix(&r, offer.RoCE.UDPPort) {
			return ErrNotHere
		}
		return h.join(l, from)
	}, func(err error) {
		switch {
		case err == nil:
			attach(l.QP)
			l.enter()
		case l != nil:
			l.Close()
			l = nil
		}
		done(l, offer, err)
	})
}

// connect implements path.
func (h *Hardware) connect(l *Link, to negotiate.CarrierOffer, done func(error)) {
	l.joining = true
	l.enter()
	h.beside(l.of, func() error { return h.join(l, to) }, func(err error) {
		l.joining = false
		switch {
		case l.phase == linkClosed: // meanwhile
			h.end(l)
			err = ErrClosed
		case err == nil:
			attach(l.QP)
		}
		done(err)
		l.catchUp()
	})
}

// beside does work for a connection in a goroutine, and then what follows on its shard.
func (h *Hardware) beside(r Request, work func() error, then func(error)) {
	owner := r.User.Owner()
	h.work.Go(func() {
		err := contained(owner, work)
		r.Shard.Post(func() {
			turn := &h.turns[r.Shard.ID()]
			turn.Lock()
			defer turn.Unlock()
			r.Shard.WorksFor(owner)
			then(err)
		})
	})
}

// detach takes a queue pair from the shard, or from the goroutine that has made it.
func detach(qp verbs.QP) {
	if d, ok := qp.(verbs.Detacher); ok {
		d.Detach()
	}
}

// attach gives a queue pair that was detached to its shard, which calls it.
func attach(qp verbs.QP) {
	if d, ok := qp.(verbs.Detacher); ok {
		d.Attach()
	}
}

// errPanicked is why work was not done whose panic ends its owner.
var errPanicked = errors.New("internal error")

// contained does work, and tells its owner if that panics.
func contained(owner interface{ Panicked(any) }, work func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errPanicked
			owner.Panicked(r)
		}
	}()
	return work()
}

// newLink makes a queue pair in INIT with its memory, or takes one that is ready; for an
// offer only if that is of the connection's peer. It may block.
func (h *Hardware) newLink(r Request, from *negotiate.CarrierOffer) (*Link, error) {
	a, index, gid, err := h.portOf(r.Local, r.Remote)
	if err != nil {
		return nil, err
	}
	p, err := a.enterPeer(r.Remote)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.name, err)
	}
	hl := &hwLink{hwPeer: p, gid: gid, index: index, lid: a.port.Load().LID, psn: rand.Uint32() & 0xffffff}
	err = h.net.lead(&r, hl)
	if err == nil && from != nil {
		err = h.net.check(&r, hl, from)
	}
	var made *hwPair
	if err == nil {
		made, err = p.take(r.Shard, r.Memory)
	}
	if err != nil {
		a.leavePair()
		a.leavePeer(p)
		return nil, fmt.Errorf("%s: %w", a.name, err)
	}
	hl.lane = made.lane
	l := made.link(h.env, r)
	l.medium, l.Kind, l.Lossy, l.peer = h, h.Kind(), true, hl
	a.add(l)
	return l, nil
}

// describe is what the other side must know of a queue pair.
func (h *Hardware) describe(l *Link) negotiate.CarrierOffer {
	o := h.net.describe(l.peer.(*hwLink), l.QP.Num())
	o.Kind, o.Conn = l.Kind, l.connData()
	return o
}

// join connects the queue pair and the endpoint. The shard does not use either before it
// has returned, nor before attach.
func (h *Hardware) join(l *Link, to negotiate.CarrierOffer) error {
	hl := l.peer.(*hwLink)
	detach(l.QP)
	if err := h.net.check(&l.of, hl, &to); err != nil {
		return err
	}
	attr := h.net.attr(hl, &to)
	l.probeLen = attr.PathMTU.Bytes()
	hl.meets(to.Mixed)
	attr.SQPSN, attr.MinRNRTimer, attr.Timeout, attr.RetryCnt, attr.RNRRetry = hl.psn, 12, hwTimeout, hwRetries, 7
	reads := uint8(min(1, hl.a.dev.Attr().MaxRDAtomic)) // none is ever posted
	attr.MaxRDAtomic, attr.MaxDestRDAtomic = reads, reads
	if to.Mixed {
		attr.Timeout = softTimeout
	}
	return hl.a.explain(hl.a.calls.Do(func() error {
		if err := l.greet(to.Conn); err != nil {
			return err
		}
		return verbs.Connect(l.QP, attr)
	}))
}

// end implements failing. Nothing reaches the memory when the reaper has closed the queue
// pair.
func (h *Hardware) end(l *Link) {
	hl := l.peer.(*hwLink)
	if l.joining { // connect goes on here
		return
	}
	hl.unwatch(leg{l})
	detach(l.QP)
	l.EP.Leave()
	hl.a.forget(l)
	hl.a.reaper.Put(func() {
		h.reap(l, l.EP.Release)
		hl.a.leavePeer(hl.hwPeer)
	})
}

// reap closes the queue pair of a link and frees what it reaches. One that the adapter does
// not let go keeps that, and its room.
func (h *Hardware) reap(l *Link, free func() error) {
	hl := l.peer.(*hwLink)
	err := l.QP.Close()
	hl.stuck = err != nil
	if !hl.stuck {
		err = free()
		hl.lane.Leave(l.Shard, linkNeed())
	}
	if err != nil {
		h.env.Log.Warn("close queue pair", "flow_id", l.of.ID, "error", err)
	}
	hl.a.leavePair()
}

// abandon implements failing. What was sent stays in registered memory until it has been
// sent again; where the adapter goes, it is copied.
func (h *Hardware) abandon(l *Link) (sent, written func()) {
	hl := l.peer.(*hwLink)
	a := hl.a
	hl.unwatch(leg{l})
	detach(l.QP)
	free := l.EP.ReleaseRings
	if a.keepTail(l) {
		free = l.EP.Release
	}
	a.forget(l)
	a.reaper.Put(func() { h.reap(l, free) })
	return sync.OnceFunc(func() { a.dropTail(l) }), func() {}
}

// convicted implements failing. An adapter does not tell from where a request came that
// its queue pair refused, and the queue pair has failed by it.
func (*Hardware) convicted(*Link) bool { return false }

// known returns the peers of all adapters.
func (h *Hardware) known() (peers []*farPeer) {
	for _, a := range h.open() {
		peers = append(peers, a.known()...)
	}
	return peers
}

// forgetIdle frees what peers without flows hold.
func (h *Hardware) forgetIdle(now time.Time) {
	for _, a := range h.open() {
		a.forgetIdle(now)
	}
}

// open returns the adapters that are open.
func (h *Hardware) open() []*adapter {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*adapter(nil), h.adapters...)
}

// Close implements Provider.
func (h *Hardware) Close() error {
	h.mu.Lock()
	h.shut = true
	h.mu.Unlock()
	h.halt()
	h.work.Wait()
	h.net.close()
	h.mu.Lock()
	left := slices.Concat(h.adapters, h.late)
	h.mu.Unlock()
	var errs []error
	for _, a := range left {
		errs = append(errs, a.close(false))
	}
	return errors.Join(errs...)
}
