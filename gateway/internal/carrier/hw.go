package carrier

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

const (
	// hwTimeout and hwRetries make an adapter give up on a silent peer after eight times
	// 4.096 µs << 14 = 67 ms; adapters may take up to four times as long. A peer in software
	// may have to wait for a processor and gets softTimeout instead.
	hwTimeout = 14
	hwRetries = 7
	// hwHops is the hop limit of RoCEv2 packets.
	hwHops = 64
)

// Hardware is the carrier on the host's RDMA adapters of one link layer, RoCEv2 or
// InfiniBand. Making, connecting and closing a queue pair takes an adapter milliseconds, so
// shards never do it: goroutines of the adapter do, and post the result.
type Hardware struct {
	far
	env   *Env
	kind  report.DeviceKind
	layer verbs.LinkLayer
	net   network
	host  Adapters
	work  sync.WaitGroup // links being made or connected
	turns []sync.Mutex   // by shard: held while a result is handled, since a shard that has ended has no thread

	mu       sync.Mutex // guards everything below
	shut     bool
	adapters []*adapter           // open, by name
	late     []*adapter           // out of use: closed when their last call returns
	left     map[string]departure // adapters that are not open
	routes   routeCache
}

// Adapters finds and opens the RDMA adapters of a host.
type Adapters interface {
	// List returns the names of the adapter ports with this link layer, as adapter, slash,
	// port number.
	List(layer verbs.LinkLayer) ([]string, error)
	// Open opens a port. [verbs.ErrNotSupported] means that a gateway cannot use it.
	Open(name string, vectors int) (AdapterPort, error)
	// Changed returns a channel that is sent to when adapters may have come or gone, until
	// stop is called. The channel may be nil.
	Changed() (changed <-chan struct{}, stop func())
}

// AdapterPort is an open port of an adapter.
type AdapterPort interface {
	verbs.Device
	// Counters returns the device's statistics: a flat struct of numbers.
	Counters() any
	// PKey returns an entry of the port's partition table.
	PKey(index int) (uint16, error)
}

// network is how one link layer addresses the queue pairs of adapters. lead may block.
type network interface {
	// gidOf returns the GID that a port has for the local address of a connection that leaves
	// by this route, or zero if no port has one.
	gidOf(local netip.Addr, by route) (verbs.GID, error)
	// lead finds the link's path to its peer and what the path supports.
	lead(r *Request, hl *hwLink) error
	// describe says how to reach the queue pair of a link.
	describe(hl *hwLink, qpn uint32) negotiate.CarrierOffer
	// check returns an error if a queue pair is not where the connection leads.
	check(r *Request, hl *hwLink, to *negotiate.CarrierOffer) error
	// attr returns the attributes that connect the queue pair of a link to the peer's.
	attr(hl *hwLink, to *negotiate.CarrierOffer) verbs.QPAttr
	// changed is called when the network around a port may have changed. It may block until
	// the adapter closes.
	changed(a *adapter)
	// close ends it.
	close()
}

// hwLink is the state that Hardware keeps per link.
type hwLink struct {
	*hwPeer
	lane   *loop.Lane
	gid    verbs.GIDEntry // of this end
	index  uint8          // of gid in the adapter's table
	lid    uint16         // of the port; InfiniBand
	global bool           // the port needs a global header; InfiniBand
	psn    uint32
	mtu    verbs.MTU   // the most the path supports, as far as this end knows
	way    rdmacm.Path // InfiniBand
	pkey   uint16      // of this end; InfiniBand
	stuck  bool        // its queue pair could not be closed; owned by the reaper
}

// openHW opens the adapters with link layer Ethernet.
func openHW(env *Env) (Provider, error) {
	return openAdapters(env, report.DeviceHW, verbs.LinkLayerEthernet, func(h *Hardware) network { return &ethernet{env} })
}

// openIB opens the adapters with link layer InfiniBand.
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

// OffersAtOnce implements Prompt: without adapters there is nothing to offer. On InfiniBand,
// adapters that are not open may still need a query.
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

// beside runs work for a connection on a goroutine, and then runs then on the connection's
// shard.
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

// detach takes a queue pair away from the shard, or from the goroutine that made it.
func detach(qp verbs.QP) {
	if d, ok := qp.(verbs.Detacher); ok {
		d.Detach()
	}
}

// attach gives a detached queue pair to its shard, which calls it.
func attach(qp verbs.QP) {
	if d, ok := qp.(verbs.Detacher); ok {
		d.Attach()
	}
}

// errPanicked is the result of work that panicked; the panic ends its owner.
var errPanicked = errors.New("internal error")

// contained runs work and reports a panic to its owner.
func contained(owner interface{ Panicked(any) }, work func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errPanicked
			owner.Panicked(r)
		}
	}()
	return work()
}

// newLink makes a queue pair in INIT with its memory, or takes one from the pool. To answer
// an offer (from), it first checks that the offer leads to the connection's peer. It may
// block.
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

// describe returns what the other side must know of a queue pair.
func (h *Hardware) describe(l *Link) negotiate.CarrierOffer {
	o := h.net.describe(l.peer.(*hwLink), l.QP.Num())
	o.Kind, o.Conn = l.Kind, l.connData()
	return o
}

// join connects the queue pair and the endpoint. The shard must use neither before join has
// returned and attach has been called.
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
	reads := uint8(min(1, hl.a.dev.Attr().MaxRDAtomic)) // RDMA READs are never posted
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

// end implements medium. The memory is freed after the reaper has closed the queue pair,
// when nothing can reach it any more.
func (h *Hardware) end(l *Link) {
	hl := l.peer.(*hwLink)
	if l.joining { // connect continues with end
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

// reap closes the queue pair of a link and frees the memory it reaches. If the adapter does
// not let go of the queue pair, the memory stays allocated and its room stays taken.
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

// abandon implements medium. Sent data stays in registered memory until it has been
// retransmitted; if the adapter is leaving, it is copied.
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

// convicted implements medium. It is always false: an adapter does not tell where a request
// that its queue pair refused came from, and the refusal has already failed the queue pair.
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

// open returns the open adapters.
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

// DatagramsAt returns the adapter for datagrams between two addresses. It may block, as its
// Hold may. Env.Withdrawn ends the use of the device.
func (h *Hardware) DatagramsAt(local, remote netip.Addr) (at DatagramDevice, err error) {
	a, index, _, err := h.portOf(local, remote)
	if err != nil {
		return at, err
	}
	hw := h.env.Config.HW
	return DatagramDevice{
		Device: a.dev, Port: *a.port.Load(), GID: index, TrafficClass: hw.TrafficClass, ServiceLevel: hw.ServiceLevel(),
		Mixed: hw.Mixed == config.SwitchOn, Hold: a.holdFor,
	}, nil
}

// holdFor reserves room for the work requests of a queue pair for datagrams in a completion
// queue of a shard.
func (a *adapter) holdFor(s *loop.Shard, need int) (q *loop.Queue, leave func(), err error) {
	if err := a.holdDatagrams(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", a.name, err)
	}
	ln, err := a.lanes.Admit(s, need)
	if err != nil {
		a.leaveDatagrams()
		return nil, nil, a.explain(err)
	}
	return ln.Queue, sync.OnceFunc(func() {
		ln.Leave(s, need)
		a.leaveDatagrams()
	}), nil
}

// holdDatagrams counts a queue pair for datagrams; leaveDatagrams uncounts it.
func (a *adapter) holdDatagrams() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaving {
		return ErrYielded
	}
	a.datagrams++
	return nil
}

func (a *adapter) leaveDatagrams() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.datagrams--
}
