package carrier

import (
	"errors"
	"net/netip"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// readCap bounds one read into the peer's memory, so that a bulk connection announces
	// its bytes while the next ones are still being copied.
	readCap = 256 << 10
	// farReadCap is readCap over a network: what fills grants of a farRing without a
	// remainder.
	farReadCap = farRing / 4
)

// User is what a link works for. Its methods are called on the link's shard, those of
// WireLeg from any goroutine: a user without one is not asked for signs of the peer's life.
type User interface {
	loop.Work
	// Completed is told what a completion has brought; not ok: the queue pair has failed.
	Completed(ev rsocket.Events, ok bool)
	// Broken says that the endpoint has failed outside of a completion.
	Broken()
	// Violated says that the peer asked the queue pair for what that does not grant.
	Violated()
}

// Request is a connection that wants a link.
type Request struct {
	User          User
	Shard         *loop.Shard
	ID            uint64 // of the connection, for the log
	Local, Remote netip.Addr
	Memory        *Memory // nil: that of the pool
	Cold          bool    // a client's that uses nothing of what links before it found out
}

// peer is whose share the link counts for.
func (r *Request) peer() netip.Addr { return r.Remote.Unmap() }

// path is how the links of one device reach their peers, and what is known of that.
type path interface {
	// connect connects the queue pair to the other side's. It is called on the shard, and
	// calls done there once, maybe before it returns.
	connect(l *Link, to negotiate.CarrierOffer, done func(error))
	// warm reports whether the carrier has been proved with this peer, so that the
	// queue pair can be used at once; proved tells that it has, unproved that a proof has
	// not come back, and that no other link's holds.
	warm(l *Link) bool
	proved(l *Link)
	unproved(l *Link)
	// answered is told what the ACCEPT of a peer offers; nil: the peer has declined
	// because no carrier can be had, for why. It reports whether that was about an offer
	// that another gateway has taken or that was made alone, and says nothing about the next.
	answered(l *Link, a *negotiate.Accept, why negotiate.Reason) (outdated bool)
}

// failing is what becomes of the links of one device.
type failing interface {
	// began tells that the link carries, wireLost that its wire leg broke while it did,
	// or was silent for [LegPatience]. Neither may block.
	began(l *Link)
	wireLost(l *Link, silent bool)
	// reason names what ended the queue pair, survives tells whether the connection can go
	// on without it: the peer lives, and has not broken the protocol.
	reason(l *Link, err error) negotiate.Reason
	survives(l *Link, err error) bool
	// convicted tells, when the peer leaves the queue pair, whether it has broken the
	// protocol there.
	convicted(l *Link) bool
	// abandon is Depart.
	abandon(l *Link) (sent, written func())
	// end closes the queue pair of a link that was closed, and frees its memory when the
	// peer cannot write to it any more.
	end(l *Link)
}

// medium is the device of a link, as the link sees it.
type medium interface {
	path
	failing
}

// Link is a queue pair to the gateway of a peer, with its endpoint and rings. Only the
// thread of its shard touches it, once it is connected.
//
//	made ── Connect ──► connected ── Begin ──► carries ── Close, Depart ──► closed
//	  └──────────────────────┴──────── Close ────────────────────────────────►┘
type Link struct {
	Shard *loop.Shard
	QP    verbs.QP
	EP    *rsocket.Endpoint // on QP
	Arena *rmb.Arena        // has the memory of EP
	Kind  negotiate.CarrierKind
	Lossy bool // packets can be lost on the way

	// Halfway is set while bytes of EP change hands. After a panic it stays set: what EP says
	// of them cannot be trusted.
	Halfway bool

	env     *Env
	of      Request
	medium  medium
	peer    any                   // the medium's own
	queue   *loop.Queue           // of its device on its shard
	offered negotiate.CarrierKind // of a server's link whose ends are mixed; see Offered
	phase   linkPhase

	joining  bool // a goroutine connects it, beside the shard
	fitting  bool // memory for another ring is on its way
	isProved bool
	trusted  bool       // its carrier was found warm
	early    []verbs.WC // that have come while it was joining: at most one for each receive
	rings    ringPlan
	reap     func() // after a region was freed that may have been the peer's last; nil: nothing to do

	probeLen int // the proof: one full path MTU
	seed     uint64
}

// linkPhase is where a link stands.
type linkPhase uint8

const (
	linkMade linkPhase = iota // or connected
	linkCarries
	linkClosed
)

// Owner implements loop.Work.
func (l *Link) Owner() loop.Owner { return l.of.User.Owner() }

// Offered is the kind by which the negotiation knows the link: that of the client's device,
// which is another one than Kind where the ends are mixed.
func (l *Link) Offered() negotiate.CarrierKind {
	if l.offered != negotiate.CarrierRelay {
		return l.offered
	}
	return l.Kind
}

// Closed reports whether the queue pair is gone, or was left.
func (l *Link) Closed() bool { return l.phase == linkClosed }

// Carries reports whether bytes may flow: CONFIRM was sent or received.
func (l *Link) Carries() bool { return l.phase == linkCarries }

// Complete implements loop.Completer: it takes every completion of the queue pair.
func (l *Link) Complete(wc *verbs.WC) {
	switch {
	case l.phase == linkClosed, l.Halfway:
		return
	case l.joining:
		l.early = append(l.early, *wc)
		return
	}
	l.Halfway = true
	l.env.failed.note(l.Kind, wc.Status)
	ev := l.EP.HandleWC(wc)
	l.Halfway = false
	l.of.User.Completed(ev, wc.Status == verbs.WCSuccess && !ev.Has(rsocket.EventFailed))
}

// catchUp takes the completions that came while the link was being connected: the other
// side may have been faster.
func (l *Link) catchUp() {
	early := l.early
	l.early = nil
	for i := range early {
		l.Complete(&early[i])
	}
}

// Connect connects the link to the other side's. done is called once, on the shard, maybe
// before Connect returns.
func (l *Link) Connect(to negotiate.CarrierOffer, done func(error)) {
	if l.phase == linkClosed {
		done(ErrClosed)
		return
	}
	l.medium.connect(l, to, done)
}

// reply connects the link of a server's connection and tells done of it. A link that
// cannot be connected is closed.
func (l *Link) reply(offer, to negotiate.CarrierOffer, done Answered) {
	l.Connect(to, func(err error) {
		if err != nil {
			l.Close()
			done(nil, offer, err)
			return
		}
		done(l, offer, nil)
	})
}

// attach connects the queue pair and the endpoint.
func (l *Link) attach(attr verbs.QPAttr, conn negotiate.ConnData) error {
	l.enter()
	if err := verbs.Connect(l.QP, attr); err != nil {
		return err
	}
	return l.greet(conn)
}

// enter has completions of the queue pair reach the link.
func (l *Link) enter() { l.queue.Members[l.QP.Num()] = l }

// greet connects the endpoint. It allocates the send buffer.
func (l *Link) greet(conn negotiate.ConnData) error {
	data, err := rsocket.ParseConnData(conn[:])
	if err != nil {
		return err
	}
	return l.EP.Connect(data)
}

// connData is what the peer has to know of the link's memory.
func (l *Link) connData() (d negotiate.ConnData) {
	l.EP.ConnData().Append(d[:0])
	return d
}

// Answered tells a client's link what the ACCEPT of the peer offers; nil: it has declined because no carrier
// can be had, for why. It reports whether that says nothing about the next offer, which is another one.
func (l *Link) Answered(a *negotiate.Accept, why negotiate.Reason) (outdated bool) {
	return l.medium.answered(l, a, why)
}

// Begin says that bytes may flow.
func (l *Link) Begin() {
	l.phase = linkCarries
	l.medium.began(l)
}

// ReadCap bounds one read into the peer's memory. A message over a network costs a train
// of its own for either end of it, so there are fewer.
func (l *Link) ReadCap() int {
	if l.Lossy {
		return farReadCap
	}
	return readCap
}

// WireLost tells that the wire leg broke while the link carried, or was silent for
// [LegPatience].
func (l *Link) WireLost(silent bool) { l.medium.wireLost(l, silent) }

// Reason names what err has ended the queue pair by.
func (l *Link) Reason(err error) negotiate.Reason { return l.medium.reason(l, err) }

// Survives reports whether the connection can go on without the link that has failed by
// err: the peer lives, and has not broken the protocol.
func (l *Link) Survives(err error) bool { return l.medium.survives(l, err) }

// Convicted reports, when the peer leaves the link, whether it has broken the protocol
// there.
func (l *Link) Convicted() bool { return l.medium.convicted(l) }

// Depart takes the link from a connection that goes on without it. What was sent and not
// consumed stays where it is until sent is called, once; what the peer may write to is
// not used again before written is called, at least once. Any goroutine may call both.
func (l *Link) Depart() (sent, written func()) {
	delete(l.queue.Members, l.QP.Num())
	l.Shard.Flush()
	l.phase = linkClosed
	l.EP.Leave()
	return l.medium.abandon(l)
}

// Close ends the link. The last that was posted leaves as the last that was written
// natively does.
func (l *Link) Close() {
	if l.phase == linkClosed {
		return
	}
	l.phase = linkClosed
	delete(l.queue.Members, l.QP.Num())
	l.Shard.Flush()
	l.medium.end(l)
}

// closePair closes the queue pair and the endpoint of a link that was closed.
func (l *Link) closePair() {
	if err := errors.Join(l.QP.Close(), l.EP.Close()); err != nil {
		l.env.Log.Warn("close queue pair", "flow_id", l.of.ID, "error", err)
	}
}
