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

// idlePeers is how long the domain and memory of a peer without flows are kept.
const idlePeers = time.Minute

// far is the common part of carriers over a network: a peer is the address that the
// connection has proved, its path is proved by full packets, and keepalive on wire legs
// detects its death.
type far struct {
	stop    chan struct{}
	watcher watcher
	done    sync.WaitGroup
	past    report.PastDevices // the devices closed so far
}

func newFar() far { return far{stop: make(chan struct{}), watcher: newWatcher()} }

// leg adapts a link whose user implements WireLeg.
type leg struct{ *Link }

func (l leg) Ending() bool                              { return l.of.User.(WireLeg).Ending() }
func (l leg) KeepAlive(every time.Duration, probes int) { l.of.User.(WireLeg).KeepAlive(every, probes) }
func (l leg) Ask()                                      { l.of.User.(WireLeg).Ask() }

// Met implements Provider: a peer is just an address.
func (*far) Met(negotiate.CarrierOffer, *negotiate.Proposal) bool { return true }

// Meet implements Provider.
func (*far) Meet(context.Context, netip.Addr, negotiate.CarrierOffer) error { return nil }

// reachable reports whether the queue pair is at the address that the connection itself has
// proved to be the peer's. Otherwise a peer could make this host send to third parties.
func (r *Request) reachable(o negotiate.CarrierOffer) bool {
	return verbs.GID(o.RoCE.GID).Addr() == r.Remote
}

// commonMTU returns the path MTU of a queue pair: the smaller of both ends'. The proof shows
// whether the path supports it.
func commonMTU(own verbs.MTU, peers uint16) verbs.MTU {
	for own > verbs.MTU256 && own.Bytes() > int(peers) {
		own--
	}
	return own
}

// answered implements path. If the peer declines an offer that was made alone because its
// carrier had been proved, the peer has lost its device since, or the device is full: the
// next connection makes all offers again.
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

// reason implements failing. After a failure the carrier must be proved again.
func (r *far) reason(l *Link, err error) negotiate.Reason {
	if errors.Is(err, rsocket.ErrProtocol) {
		return negotiate.ReasonProtocolError
	}
	p := farPeerOf(l)
	p.void()
	p.path.failed()
	var completion *rsocket.CompletionError
	met := errors.As(err, &completion)
	// The status does not show that a device of this host has gone.
	if met && completion.Status != verbs.WCWRFlushErr && completion.Status != verbs.WCFatalErr {
		l.partMixed(brokenApart)
	}
	if met && unanswered(completion.Status) {
		p.suspect()
		r.watcher.askSoon()
		return negotiate.ReasonCarrierUnreachable // the wire leg shows whether its gateway is alive
	}
	return negotiate.ReasonDeviceFailed
}

// unanswered reports whether the status means that the peer or the path is gone.
func unanswered(s verbs.WCStatus) bool {
	return s == verbs.WCRetryExcErr || s == verbs.WCRNRRetryExcErr
}

// survives implements failing: if the peer gateway is dead, its kernel says so on the wire
// leg.
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

// halt stops the goroutines that run until stop is closed.
func (r *far) halt() {
	close(r.stop)
	r.done.Wait()
}
