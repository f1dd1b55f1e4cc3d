package carrier

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/tally"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// warmFor is how long a proof holds: a path can stop to carry UDP at any time.
	warmFor = 10 * time.Second
	// idlePeers is how long the domain and memory of a peer without flows are
	// kept.
	idlePeers = time.Minute
)

// far is what the carriers over a network have in common: a peer is the address that the
// connection has proved, its path is proved by full packets, and a keepalive of the
// wire legs tells of its death.
type far struct {
	stop chan struct{}
	kick chan struct{} // a peer is to be asked before the next turn of watch
	done sync.WaitGroup
	past tally.Devices // those that were closed
}

func newFar() far { return far{stop: make(chan struct{}), kick: make(chan struct{}, 1)} }

// farPeer is what is known of a peer over a network.
type farPeer struct {
	remote  netip.Addr
	warm    loop.Instant // until when a proof holds, zero when a queue pair has failed since
	warmLen atomic.Int64 // the length of the packets of that proof
	path    farPath
	mixed   atomic.Bool // the devices of the last link were of both kinds
	peerKeepalive
}

// farPeerOf returns the peer of a link.
func farPeerOf(l *Link) *farPeer { return l.peer.(interface{ far() *farPeer }).far() }

func (p *farPeer) far() *farPeer { return p }

// Met implements Fabric: a peer is an address.
func (*far) Met(negotiate.CarrierOffer, *negotiate.Proposal) bool { return true }

// Meet implements Fabric.
func (*far) Meet(context.Context, netip.Addr, negotiate.CarrierOffer) error { return nil }

// reachable: the queue pair must be at the address that the connection itself
// has proved to be the peer's, or we could be made to send to third parties.
func (r *Request) reachable(o negotiate.CarrierOffer) bool {
	return verbs.GID(o.RoCE.GID).Addr() == r.Remote
}

// commonMTU is the path MTU of a queue pair: the smaller of both ends'. The proof
// tells whether the path takes it.
func commonMTU(own verbs.MTU, peers uint16) verbs.MTU {
	for own > verbs.MTU256 && own.Bytes() > int(peers) {
		own--
	}
	return own
}

// answered implements path. A peer that declines an offer beside which nothing was offered, as what had been proved,
// has lost its device since, or that is full: the next connection offers everything.
func (*far) answered(l *Link, a *negotiate.Accept, _ negotiate.Reason) (outdated bool) {
	if outdated = a == nil && l.trusted; outdated {
		farPeerOf(l).warm.Store(time.Time{})
	}
	return outdated
}

// warm implements path.
func (*far) warm(l *Link) bool {
	p := farPeerOf(l)
	warm := time.Now().Before(p.warm.Load()) && int64(l.probeLen) <= p.warmLen.Load()
	l.trusted = l.trusted || warm
	return warm
}

// proved implements path.
func (*far) proved(l *Link) {
	p := farPeerOf(l)
	p.warmLen.Store(int64(l.probeLen))
	p.warm.Store(time.Now().Add(warmFor))
}

// unproved implements path.
func (*far) unproved(l *Link) {
	farPeerOf(l).path.unproved(time.Now())
	l.partMixed(unprovedApart * l.env.Config.Fallback.NegativeCache)
}

// reason implements failing. After a failure the carrier has to be proved again.
func (r *far) reason(l *Link, err error) negotiate.Reason {
	if _, ok := errors.AsType[*rsocket.ProtocolError](err); ok {
		return negotiate.ReasonProtocolError
	}
	p := farPeerOf(l)
	p.warm.Store(time.Time{})
	l.partMixed(brokenApart)
	var completion *rsocket.CompletionError
	if errors.As(err, &completion) && unanswered(completion.Status) {
		p.suspect()
		r.askSoon()
		return negotiate.ReasonCarrierUnreachable // whether its gateway lives, the wire leg says
	}
	return negotiate.ReasonDeviceFailed
}

// unanswered: the peer or the path is gone.
func unanswered(s verbs.WCStatus) bool {
	return s == verbs.WCRetryExcErr || s == verbs.WCRNRRetryExcErr
}

// survives implements failing: if the peer's gateway is dead its kernel says so on
// the wire leg.
func (*far) survives(_ *Link, err error) bool {
	var protocol *rsocket.ProtocolError
	return !errors.As(err, &protocol)
}

// began implements failing.
func (*far) began(l *Link) { farPeerOf(l).watch(l) }

// wireLost implements failing.
func (r *far) wireLost(l *Link, silent bool) {
	if farPeerOf(l).lost(l, silent) {
		r.askSoon()
	}
}

// askSoon has watch go on before its next turn. It never blocks.
func (r *far) askSoon() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// watch keeps an eye on all peers until the device is closed, and calls forget once a
// turn.
func (r *far) watch(peers func() []*farPeer, forget func(now time.Time)) {
	tick := time.NewTicker(KeepaliveTurn)
	defer tick.Stop()
	for {
		select {
		case <-r.stop:
			return
		case now := <-tick.C:
			forget(now)
		case <-r.kick:
			time.Sleep(keepalivePause)
		}
		for _, p := range peers() {
			p.turn()
		}
	}
}

// halt ends watch.
func (r *far) halt() {
	close(r.stop)
	r.done.Wait()
}
