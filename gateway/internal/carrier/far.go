package carrier

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// idlePeers is how long the domain and memory of a peer without flows are
// kept.
const idlePeers = time.Minute

// far is what the carriers over a network have in common: a peer is the address that the
// connection has proved, its path is proved by full packets, and a keepalive of the
// wire legs tells of its death.
type far struct {
	stop    chan struct{}
	watcher watcher
	done    sync.WaitGroup
	past    report.PastDevices // those that were closed
}

func newFar() far { return far{stop: make(chan struct{}), watcher: newWatcher()} }

// leg is a link as its peer sees it, of a user that has a WireLeg.
type leg struct{ *Link }

func (l leg) Ending() bool                              { return l.of.User.(WireLeg).Ending() }
func (l leg) KeepAlive(every time.Duration, probes int) { l.of.User.(WireLeg).KeepAlive(every, probes) }
func (l leg) Ask()                                      { l.of.User.(WireLeg).Ask() }

// Met implements Provider: a peer is an address.
func (*far) Met(negotiate.CarrierOffer, *negotiate.Proposal) bool { return true }

// Meet implements Provider.
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
		farPeerOf(l).void()
	}
	return outdated
}

// warm implements path.
func (*far) warm(l *Link) bool {
	warm := farPeerOf(l).isWarm(l.probeLen)
	l.trusted = l.trusted || warm
	return warm
}

// proved implements path.
func (*far) proved(l *Link) { farPeerOf(l).noteProved(l.probeLen) }

// unproved implements path.
func (*far) unproved(l *Link) {
	farPeerOf(l).noteUnproved()
	l.partMixed(unprovedApart * l.env.Config.Fallback.NegativeCache)
}

// reason implements failing. After a failure the carrier has to be proved again.
func (r *far) reason(l *Link, err error) negotiate.Reason {
	if errors.Is(err, rsocket.ErrProtocol) {
		return negotiate.ReasonProtocolError
	}
	p := farPeerOf(l)
	p.void()
	var completion *rsocket.CompletionError
	met := errors.As(err, &completion)
	if met && completion.Status != verbs.WCWRFlushErr && completion.Status != verbs.WCFatalErr { // not a device of this host that has gone
		l.partMixed(brokenApart)
	}
	if met && unanswered(completion.Status) {
		p.suspect()
		r.watcher.askSoon()
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
func (*far) survives(_ *Link, err error) bool { return !errors.Is(err, rsocket.ErrProtocol) }

// began implements failing.
func (*far) began(l *Link) {
	if _, ok := l.of.User.(WireLeg); ok {
		farPeerOf(l).watch(leg{l})
	}
}

// wireLost implements failing.
func (r *far) wireLost(l *Link, silent bool) {
	if farPeerOf(l).lost(leg{l}, silent) {
		r.watcher.askSoon()
	}
}

// halt ends what runs until stop.
func (r *far) halt() {
	close(r.stop)
	r.done.Wait()
}
