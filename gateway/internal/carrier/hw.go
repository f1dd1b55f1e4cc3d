package carrier

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// hwTimeout and hwRetries: an adapter gives up a peer that is silent for eight times
	// 4.096 µs << 14 = 67 ms; adapters take up to four times as long.
	hwTimeout = 14
	// A peer in software may have to wait for a processor: softTimeout is for it.
	hwRetries = 7
	// hwHops is the hop limit of packets.
	hwHops = 64
)

// Hardware is the carrier on adapters: RoCEv2 that the host's RDMA adapters do
// themselves. Making, connecting and closing a queue pair takes an adapter milliseconds,
// so no shard does: goroutines of the adapter do, and post what has become of it.
type Hardware struct {
	roce
	env   *Env
	host  Adapters
	work  sync.WaitGroup // links that are being made or connected
	turns []sync.Mutex   // by shard: held for what follows that. A shard that has ended has no thread

	mu       sync.Mutex // guards everything below
	shut     bool
	adapters []*adapter           // open, by name
	left     map[string]departure // that are not open
	routes   routeCache
}

// Adapters finds and opens the RDMA adapters of a host.
type Adapters interface {
	// List names the ports of the adapters, as the adapter, a slash and the number.
	List() ([]string, error)
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
}

// hwLink is what Hardware knows of a link.
type hwLink struct {
	*hwPeer
	lane  *lane
	gid   verbs.GIDEntry // of this end
	index uint8          // of gid in the adapter's table
	psn   uint32
	mtu   verbs.MTU // the most the path takes as far as this end knows
}

func openHW(env *Env) (Fabric, error) {
	h := &Hardware{roce: newRoCE(), env: env, host: env.adapters(), left: map[string]departure{}, turns: make([]sync.Mutex, len(env.Shards))}
	if err := h.scan(); err != nil {
		return nil, err
	}
	h.done.Go(func() { h.watch(h.known, h.forgetIdle) })
	h.done.Go(h.tend)
	return h, nil
}

// Kind implements Fabric.
func (*Hardware) Kind() negotiate.CarrierKind { return negotiate.CarrierHW }

// Offer implements Fabric.
func (h *Hardware) Offer(r Request) (*Link, negotiate.CarrierOffer, error) {
	l, err := h.newLink(r)
	if err != nil {
		return nil, negotiate.CarrierOffer{}, err
	}
	offer := describeHW(l)
	offer.Mixed = h.env.mayMix(&r, offer.RoCE.UDPPort)
	return l, offer, nil
}

// OffersAtOnce implements Prompt: without adapters there is nothing to offer.
func (h *Hardware) OffersAtOnce(*Request) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.adapters) == 0
}

// Answer implements Fabric.
func (h *Hardware) Answer(r Request, from negotiate.CarrierOffer, _ *negotiate.Proposal, done Answered) {
	var l *Link
	var offer negotiate.CarrierOffer
	h.beside(r, func() error {
		if !r.reachable(from) {
			return ErrNotHere
		}
		made, err := h.newLink(r)
		if err != nil {
			return err
		}
		l = made
		from, offer = l.answerTo(from, describeHW(l))
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

// newLink makes a queue pair in INIT with its memory, or takes one that is ready. It may
// block.
func (h *Hardware) newLink(r Request) (*Link, error) {
	a, index, gid, err := h.portOf(r.Local, r.Remote)
	if err != nil {
		return nil, err
	}
	p, err := a.enterPeer(r.Remote)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.name, err)
	}
	made, err := p.take(r.Shard)
	if err != nil {
		a.leavePair()
		a.leavePeer(p)
		return nil, fmt.Errorf("%s: %w", a.name, err)
	}
	l := made.link(h.env, r)
	l.medium, l.Kind, l.Lossy = h, negotiate.CarrierHW, true
	l.peer = &hwLink{
		hwPeer: p, lane: made.lane, gid: gid, index: index, psn: rand.Uint32() & 0xffffff,
		mtu: p.path.mtu(a.port.Load().ActiveMTU, r.Remote, time.Now()),
	}
	a.add(l)
	return l, nil
}

// describeHW is what the other side must know of a queue pair.
func describeHW(l *Link) negotiate.CarrierOffer {
	hl := l.peer.(*hwLink)
	return negotiate.CarrierOffer{
		Kind: negotiate.CarrierHW, Conn: l.connData(),
		RoCE: negotiate.RoCEEndpoint{
			GID: hl.gid.GID, UDPPort: hl.a.port.Load().UDPPort, MTU: uint16(hl.mtu.Bytes()), QPN: l.QP.Num(), PSN: hl.psn,
		},
	}
}

// join connects the queue pair and the endpoint. The shard does not use either before it
// has returned, nor before attach.
func (h *Hardware) join(l *Link, to negotiate.CarrierOffer) error {
	hl := l.peer.(*hwLink)
	detach(l.QP)
	if !l.of.reachable(to) {
		return fmt.Errorf("queue pair at another address: %w", ErrNotHere)
	}
	mtu := commonMTU(hl.mtu, to)
	l.probeLen = mtu.Bytes()
	hl.meets(to.Mixed)
	timeout := uint8(hwTimeout)
	if to.Mixed {
		timeout = softTimeout
	}
	cfg := h.env.Config.HW
	return hl.a.explain(hl.a.inTurn(func() error {
		if err := l.greet(to.Conn); err != nil {
			return err
		}
		return verbs.Connect(l.QP, verbs.QPAttr{
			DestQPNum: to.RoCE.QPN, RQPSN: to.RoCE.PSN, SQPSN: hl.psn, PathMTU: mtu,
			AH: verbs.AHAttr{
				DGID: to.RoCE.GID, SGIDIndex: hl.index, HopLimit: hwHops, Port: 1,
				TrafficClass: cfg.TrafficClass, SL: cfg.ServiceLevel,
			},
			MinRNRTimer: 12, Timeout: timeout, RetryCnt: hwRetries, RNRRetry: 7, MaxRDAtomic: 1, MaxDestRDAtomic: 1,
		})
	}))
}

// end implements failing. Nothing reaches the memory when the reaper has closed the queue
// pair.
func (h *Hardware) end(l *Link) {
	hl := l.peer.(*hwLink)
	if l.joining { // connect goes on here
		return
	}
	hl.unwatch(l)
	detach(l.QP)
	l.EP.Leave()
	hl.a.forget(l)
	hl.a.reaper.put(func() {
		h.closed(l, errors.Join(l.QP.Close(), l.EP.Release()))
		hl.a.leavePeer(hl.hwPeer)
	})
}

// closed follows the close of the queue pair of a link.
func (h *Hardware) closed(l *Link, err error) {
	if err != nil {
		h.env.Log.Warn("close queue pair", "flow_id", l.of.ID, "error", err)
	}
	hl := l.peer.(*hwLink)
	hl.lane.leave(l.Shard)
	hl.a.leavePair()
}

// abandon implements failing. What was sent stays in registered memory until it has been
// sent again; where the adapter goes, it is copied.
func (h *Hardware) abandon(l *Link) (sent, written func()) {
	hl := l.peer.(*hwLink)
	a := hl.a
	hl.unwatch(l)
	detach(l.QP)
	a.keepTail(l)
	a.forget(l)
	a.reaper.put(func() { h.closed(l, errors.Join(l.QP.Close(), l.EP.ReleaseRings())) })
	return sync.OnceFunc(func() { a.dropTail(l) }), func() {}
}

// convicted implements failing. An adapter does not tell from where a request came that
// its queue pair refused, and the queue pair has failed by it.
func (*Hardware) convicted(*Link) bool { return false }

// known returns the peers of all adapters.
func (h *Hardware) known() (peers []*rocePeer) {
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

// Close implements Fabric.
func (h *Hardware) Close() error {
	h.mu.Lock()
	h.shut = true
	h.mu.Unlock()
	h.halt()
	h.work.Wait()
	var errs []error
	for _, a := range h.open() {
		errs = append(errs, a.close(false))
	}
	return errors.Join(errs...)
}

// hwKind is what the configuration calls the device.
const hwKind = config.DeviceHW
