package carrier

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
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

// roce is what the carriers on RoCEv2 have in common: a peer is the address that the
// connection has proved, its path is proved by full packets, and a keepalive of the
// wire legs tells of its death.
type roce struct {
	stop chan struct{}
	kick chan struct{} // a peer is to be asked before the next turn of watch
	done sync.WaitGroup
}

func newRoCE() roce { return roce{stop: make(chan struct{}), kick: make(chan struct{}, 1)} }

// rocePeer is what is known of a peer on RoCEv2.
type rocePeer struct {
	remote  netip.Addr
	warm    loop.Instant // until when a proof holds, zero when a queue pair has failed since
	warmLen atomic.Int64 // the length of the packets of that proof
	path    rocePath
	mixed   atomic.Bool // the devices of the last link were of both kinds
	peerKeepalive
}

// rocePeerOf returns the peer of a link.
func rocePeerOf(l *Link) *rocePeer { return l.peer.(interface{ roce() *rocePeer }).roce() }

func (p *rocePeer) roce() *rocePeer { return p }

// Met implements Fabric: a peer is an address.
func (*roce) Met(negotiate.CarrierOffer, *negotiate.Proposal) bool { return true }

// Meet implements Fabric.
func (*roce) Meet(context.Context, netip.Addr, negotiate.CarrierOffer) error { return nil }

// reachable: the queue pair must be at the address that the connection itself
// has proved to be the peer's, or we could be made to send to third parties.
func (r *Request) reachable(o negotiate.CarrierOffer) bool {
	return verbs.GID(o.RoCE.GID).Addr() == r.Remote
}

// commonMTU is the path MTU of a queue pair: the smaller of both ends'. The proof
// tells whether the path takes it.
func commonMTU(own verbs.MTU, to negotiate.CarrierOffer) verbs.MTU {
	for own > verbs.MTU256 && own.Bytes() > int(to.RoCE.MTU) {
		own--
	}
	return own
}

// answered implements path.
func (*roce) answered(*Link, *negotiate.Accept) bool { return false }

// warm implements path.
func (*roce) warm(l *Link) bool {
	p := rocePeerOf(l)
	return time.Now().Before(p.warm.Load()) && int64(l.probeLen) <= p.warmLen.Load()
}

// proved implements path.
func (*roce) proved(l *Link) {
	p := rocePeerOf(l)
	p.warmLen.Store(int64(l.probeLen))
	p.warm.Store(time.Now().Add(warmFor))
}

// unproved implements path.
func (*roce) unproved(l *Link) {
	rocePeerOf(l).path.unproved(time.Now())
	l.partMixed(unprovedApart * l.env.Config.Fallback.NegativeCache)
}

// reason implements failing. After a failure the carrier has to be proved again.
func (r *roce) reason(l *Link, err error) negotiate.Reason {
	if _, ok := errors.AsType[*rsocket.ProtocolError](err); ok {
		return negotiate.ReasonProtocolError
	}
	p := rocePeerOf(l)
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
func (*roce) survives(_ *Link, err error) bool {
	var protocol *rsocket.ProtocolError
	return !errors.As(err, &protocol)
}

// began implements failing.
func (*roce) began(l *Link) { rocePeerOf(l).watch(l) }

// wireLost implements failing.
func (r *roce) wireLost(l *Link, silent bool) {
	if rocePeerOf(l).lost(l, silent) {
		r.askSoon()
	}
}

// askSoon has watch go on before its next turn. It never blocks.
func (r *roce) askSoon() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// watch keeps an eye on all peers until the device is closed, and calls forget once a
// turn.
func (r *roce) watch(peers func() []*rocePeer, forget func(now time.Time)) {
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
func (r *roce) halt() {
	close(r.stop)
	r.done.Wait()
}
