package carrier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
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

// answered implements medium. If the peer declines an offer that was made alone because its
// carrier had been proved, the peer has lost its device since, or the device is full: the
// next connection makes all offers again.
func (*far) answered(l *Link, a *negotiate.Accept, _ negotiate.Reason) (outdated bool) {
	if outdated = a == nil && l.trusted; outdated {
		farPeerOf(l).void()
	}
	return outdated
}

func (*far) warm(l *Link) bool {
	warm := farPeerOf(l).isWarm(l.probeLen)
	l.trusted = l.trusted || warm
	return warm
}

func (*far) proved(l *Link) { farPeerOf(l).noteProved(l.probeLen) }

func (*far) unproved(l *Link) {
	farPeerOf(l).noteUnproved()
	l.partMixed(unprovedApart * l.env.Config.Fallback.NegativeCache)
}

// reason implements medium. After a failure the carrier must be proved again.
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

// survives implements medium: if the peer gateway is dead, its kernel says so on the wire
// leg.
func (*far) survives(_ *Link, err error) bool { return !errors.Is(err, rsocket.ErrProtocol) }

func (*far) began(l *Link) {
	if _, ok := l.of.User.(WireLeg); ok {
		farPeerOf(l).watch(leg{l})
	}
}

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

// warmFor is how long a proof is valid: a path can stop carrying UDP at any time.
const warmFor = 10 * time.Second

// farPeer is a peer over a network: its path, the liveness of its gateway, its domain on one
// device, and the memory of its links. The device guards users and idle. Any goroutine may
// call the methods, except close.
type farPeer struct {
	remote netip.Addr
	pd     verbs.PD
	arena  *rmb.Arena

	users int       // connections that have a queue pair, or bytes to be retransmitted
	idle  time.Time // when users became 0

	warmUntil loop.Instant // until when the proof is valid; zero if a queue pair has failed since
	warmLen   atomic.Int64 // packet length of that proof
	path      pathMTU
	mixed     atomic.Bool // the last link joined devices of both kinds
	keepalive
}

// newFarPeer makes a peer with a domain; nothing else is known about it.
func newFarPeer(env *Env, dev verbs.Device, remote netip.Addr) (*farPeer, error) {
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, fmt.Errorf("protection domain: %w", err)
	}
	return &farPeer{
		remote: remote, pd: pd, arena: env.Pool.IsolatedArenaOf(remote.Unmap(), pd), keepalive: newKeepalive(),
	}, nil
}

func (p *farPeer) far() *farPeer { return p }

// farPeerOf returns the peer of a link.
func farPeerOf(l *Link) *farPeer { return l.peer.(interface{ far() *farPeer }).far() }

// isWarm reports whether a valid proof covers packets of this length.
func (p *farPeer) isWarm(packet int) bool {
	return time.Now().Before(p.warmUntil.Load()) && int64(packet) <= p.warmLen.Load()
}

// noteProved records that packets of this length have come back.
func (p *farPeer) noteProved(packet int) {
	p.warmLen.Store(int64(packet))
	p.warmUntil.Store(time.Now().Add(warmFor))
}

// noteUnproved records that full packets have not come back.
func (p *farPeer) noteUnproved() { p.path.unproved(time.Now()) }

// void invalidates the proof.
func (p *farPeer) void() { p.warmUntil.Store(time.Time{}) }

// mtuFrom returns the path MTU for a new queue pair between a device and the peer.
func (p *farPeer) mtuFrom(device verbs.MTU) verbs.MTU {
	return p.path.mtu(device, p.remote, time.Now())
}

// meets records the kind of device at the other end of a link. A change of kind invalidates
// the proof.
func (p *farPeer) meets(mixed bool) {
	if p.mixed.Swap(mixed) != mixed {
		p.void()
	}
}

// close frees the memory and the domain.
func (p *farPeer) close() error { return errors.Join(p.arena.Close(), p.pd.Close()) }

// watcher keeps probing the peers of a device for signs of life.
type watcher struct {
	kick chan struct{} // a peer is to be probed before the next turn
}

// newWatcher makes a watcher that does not run yet.
func newWatcher() watcher { return watcher{make(chan struct{}, 1)} }

// askSoon makes run continue before its next turn. It never blocks.
func (w watcher) askSoon() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run probes all peers until stop is closed, and calls forget once a turn.
func (w watcher) run(stop <-chan struct{}, peers func() []*farPeer, forget func(now time.Time)) {
	tick := time.NewTicker(KeepaliveTurn)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			forget(now)
		case <-w.kick:
			time.Sleep(keepalivePause)
		}
		for _, p := range peers() {
			p.turn()
		}
	}
}

const (
	// mtuAsked is how long the kernel's answer about a path is cached.
	mtuAsked = time.Second
	// mtuNarrow is how long a path that lost full packets is assumed to have the MTU of
	// Ethernet: as long as the kernel remembers an ICMP error.
	mtuNarrow = 10 * time.Minute
	// narrowMTU fits a path MTU of 1500 bytes.
	narrowMTU = verbs.MTU1024
)

// pathMTU tracks how long a packet the path to one peer takes. Queue pairs keep the path MTU
// they begin with: if the path becomes narrower they fail, and their successors must fit. The
// zero value knows nothing. Its methods may be called from any goroutine.
type pathMTU struct {
	asked  loop.Instant  // when the kernel was asked
	kernel atomic.Uint32 // its answer, a verbs.MTU; 0: none
	narrow loop.Instant  // until when the loss of full packets above narrowMTU is remembered
}

// mtu returns the path MTU for a new queue pair between a device and a peer.
func (p *pathMTU) mtu(device verbs.MTU, to netip.Addr, now time.Time) verbs.MTU {
	if p.asked.Passed(now, mtuAsked) {
		m, err := soft.PathMTU(to)
		if err != nil {
			m = 0 // no route now, or it is too narrow: the proof will show
		}
		p.kernel.Store(uint32(m))
	}
	if m := verbs.MTU(p.kernel.Load()); m != 0 {
		device = min(device, m)
	}
	if now.Before(p.narrow.Load()) {
		device = min(device, narrowMTU)
	}
	return device
}

// failed records that a queue pair has failed: the path may be narrower than it was when the kernel was asked.
func (p *pathMTU) failed() { p.asked.Store(time.Time{}) }

// unproved records that full packets have not come back. If the network does not report that
// they are too long, only shorter ones can show it.
func (p *pathMTU) unproved(now time.Time) { p.narrow.Store(now.Add(mtuNarrow)) }
