package carrier

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// readCap bounds one read into the peer's memory, so that a bulk connection announces its
	// bytes while the next ones are still being copied.
	readCap = 256 << 10
	// farReadCap is readCap over a network: a size that fills the grants of a farRing without
	// a remainder.
	farReadCap = farRing / 4
)

// User is what a link works for. Its methods are called on the link's shard, those of WireLeg
// from any goroutine. A user need not implement WireLeg; it is then not asked for signs of
// life of the peer.
type User interface {
	loop.Work
	// Completed reports what a completion has brought. If ok is false, the queue pair has
	// failed.
	Completed(ev rsocket.Events, ok bool)
	// Broken reports that the endpoint has failed outside of a completion.
	Broken()
	// Violated reports that the peer requested something that the queue pair does not grant.
	Violated()
}

// Request describes a connection that needs a link.
type Request struct {
	User          User
	Shard         *loop.Shard
	ID            uint64 // of the connection, for the log
	Local, Remote netip.Addr
	Memory        *Memory // nil: from the pool
	Cold          bool    // of a client: ignore what earlier links found out
}

// peer returns the address whose share the link counts for.
func (r *Request) peer() netip.Addr { return r.Remote.Unmap() }

// medium is a link's view of its device: how its links reach their peers, what is known about
// the way there, and how they fail and end.
type medium interface {
	// connect connects the queue pair to the other side's. It is called on the shard and
	// calls done there once, possibly before it returns.
	connect(l *Link, to negotiate.CarrierOffer, done func(error))
	// warm reports whether the carrier has been proved with this peer, so that the queue pair
	// can be used at once. proved reports that a proof has come back; unproved, that it has
	// not and that no proof of another link is valid.
	warm(l *Link) bool
	proved(l *Link)
	unproved(l *Link)
	// answered receives what the peer's ACCEPT offers. With a nil a, the peer declined
	// because no carrier is available, and why is the reason. It reports whether the answer
	// concerns an offer that another gateway has taken, or that was made alone; such an
	// answer says nothing about the next offer.
	answered(l *Link, a *negotiate.Accept, why negotiate.Reason) (outdated bool)
	// began is called when the link begins to carry; wireLost when its wire leg broke
	// meanwhile, or was silent for [LegPatience]. Neither may block.
	began(l *Link)
	wireLost(l *Link, silent bool)
	// reason names what ended the queue pair. survives reports whether the connection can
	// continue without it: the peer is alive and has not violated the protocol.
	reason(l *Link, err error) negotiate.Reason
	survives(l *Link, err error) bool
	// convicted reports, when the peer leaves the queue pair, whether it has violated the
	// protocol there.
	convicted(l *Link) bool
	// abandon implements Depart.
	abandon(l *Link) (sent, written func())
	// end closes the queue pair of a closed link, and frees its memory once the peer can no
	// longer write to it.
	end(l *Link)
}

// Link is a queue pair to a peer gateway, with its endpoint and rings. Once it is connected,
// only the thread of its shard touches it.
//
//	made ── Connect ──► connected ── Begin ──► carries ── Close, Depart ──► closed
//	  └──────────────────────┴──────── Close ────────────────────────────────►┘
type Link struct {
	Shard *loop.Shard
	QP    verbs.QP
	EP    *rsocket.Endpoint // runs on QP
	Arena *rmb.Arena        // owns the memory of EP
	Kind  negotiate.CarrierKind
	Lossy bool // packets can be lost on the way

	// Halfway is set while bytes of EP change hands. It stays set after a panic, since what
	// EP says about them can no longer be trusted.
	Halfway bool

	env     *Env
	of      Request
	medium  medium
	peer    any                   // owned by the medium
	queue   *loop.Queue           // of the device on this shard
	offered negotiate.CarrierKind // set on a server's link between devices of different kinds; see Offered
	phase   linkPhase

	joining  bool // a goroutine is connecting it
	fitting  bool // memory for another ring is being allocated
	isProved bool
	trusted  bool       // its carrier was found warm
	early    []verbs.WC // came while it was joining: at most one per receive
	rings    ringPlan
	reap     func() // call after freeing a region that may have been the peer's last; nil: nothing to do

	probeLen int // length of the probe: one full path MTU
	seed     uint64
}

// linkPhase is the state of a link.
type linkPhase uint8

const (
	linkMade linkPhase = iota // includes connected
	linkCarries
	linkClosed
)

// Owner implements loop.Work.
func (l *Link) Owner() loop.Owner { return l.of.User.Owner() }

// Offered returns the kind by which the negotiation knows the link: the kind of the client's
// device, which differs from Kind if the two ends are of different kinds.
func (l *Link) Offered() negotiate.CarrierKind {
	if l.offered != negotiate.CarrierRelay {
		return l.offered
	}
	return l.Kind
}

// Closed reports whether the queue pair is gone, or the link has departed.
func (l *Link) Closed() bool { return l.phase == linkClosed }

// Carries reports whether bytes may flow: CONFIRM was sent or received.
func (l *Link) Carries() bool { return l.phase == linkCarries }

// Complete implements loop.Completer. It receives every completion of the queue pair.
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

// catchUp handles the completions that came while the link was being connected: the other
// side may have been faster.
func (l *Link) catchUp() {
	early := l.early
	l.early = nil
	for i := range early {
		l.Complete(&early[i])
	}
}

// Connect connects the link to the other side's. done is called once, on the shard, possibly
// before Connect returns.
func (l *Link) Connect(to negotiate.CarrierOffer, done func(error)) {
	if l.phase == linkClosed {
		done(ErrClosed)
		return
	}
	l.medium.connect(l, to, done)
}

// reply connects the link of a server's connection and calls done with the result. A link
// that cannot be connected is closed.
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

// enter makes completions of the queue pair reach the link.
func (l *Link) enter() { l.queue.Members[l.QP.Num()] = l }

// greet connects the endpoint. It allocates the send buffer.
func (l *Link) greet(conn negotiate.ConnData) error {
	data, err := rsocket.ParseConnData(conn[:])
	if err != nil {
		return err
	}
	return l.EP.Connect(data)
}

// connData returns what the peer has to know about the link's memory.
func (l *Link) connData() (d negotiate.ConnData) {
	l.EP.ConnData().Append(d[:0])
	return d
}

// Answered tells a client's link what the peer's ACCEPT offers. With a nil a, the peer
// declined because no carrier is available, and why is the reason. It reports whether the
// answer says nothing about the next offer, which will be a different one.
func (l *Link) Answered(a *negotiate.Accept, why negotiate.Reason) (outdated bool) {
	return l.medium.answered(l, a, why)
}

// Begin marks the link as carrying: bytes may flow.
func (l *Link) Begin() {
	l.phase = linkCarries
	l.medium.began(l)
}

// ReadCap bounds one read into the peer's memory. Over a network each message costs both ends
// a packet train of its own, so there should be fewer of them.
func (l *Link) ReadCap() int {
	if l.Lossy {
		return farReadCap
	}
	return readCap
}

// WireLost reports that the wire leg broke while the link carried, or was silent for
// [LegPatience].
func (l *Link) WireLost(silent bool) { l.medium.wireLost(l, silent) }

// Reason names what ended the queue pair with err.
func (l *Link) Reason(err error) negotiate.Reason { return l.medium.reason(l, err) }

// Survives reports whether the connection can continue without the link, which failed with
// err: the peer is alive and has not violated the protocol.
func (l *Link) Survives(err error) bool { return l.medium.survives(l, err) }

// Convicted reports, when the peer leaves the link, whether it has violated the protocol
// there.
func (l *Link) Convicted() bool { return l.medium.convicted(l) }

// Depart detaches the link from a connection that continues without it. Data that was sent
// but not consumed stays in place until sent is called, once. Memory that the peer may write
// to is not reused before written is called, at least once. Any goroutine may call both.
func (l *Link) Depart() (sent, written func()) {
	delete(l.queue.Members, l.QP.Num())
	l.Shard.Flush()
	l.phase = linkClosed
	l.EP.Leave()
	return l.medium.abandon(l)
}

// Close closes the link. Work posted last is still sent, as the last bytes written are
// natively.
func (l *Link) Close() {
	if l.phase == linkClosed {
		return
	}
	l.phase = linkClosed
	delete(l.queue.Members, l.QP.Num())
	l.Shard.Flush()
	l.medium.end(l)
}

// closePair closes the queue pair and the endpoint of a closed link.
func (l *Link) closePair() {
	if err := errors.Join(l.QP.Close(), l.EP.Close()); err != nil {
		l.env.Log.Warn("close queue pair", "flow_id", l.of.ID, "error", err)
	}
}

// pair is a queue pair in INIT with its endpoint: its receives are posted and its rings
// registered. It becomes the link of one connection.
type pair struct {
	queue *loop.Queue
	qp    verbs.QP
	ep    *rsocket.Endpoint
	arena *rmb.Arena
	rings ringPlan
}

// linkCap returns the capacities of a link's queue pair.
func linkCap() verbs.QPCap {
	return rsocket.EndpointConfig{Dialect: rsocket.Gateway}.QPCap()
}

// newPair makes a pair. works may be nil; own is nil for memory of the pool. On failure
// everything is undone.
func (env *Env) newPair(q *loop.Queue, works *rsocket.Works, pd verbs.PD, arena *rmb.Arena, limits verbs.QPCap, rings ringPlan, own *Memory) (*pair, error) {
	qp, err := pd.CreateQP(&verbs.QPInitAttr{SendCQ: q.CQ, RecvCQ: q.CQ, Cap: limits, Type: verbs.QPTRC})
	if err != nil {
		return nil, fmt.Errorf("queue pair: %w", err)
	}
	if err := verbs.Init(qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	cfg := rsocket.EndpointConfig{Dialect: rsocket.Gateway, RingSize: int(rings.first), Works: works}
	if own != nil {
		if err := own.lend(env.Shards, arena, &cfg); err != nil {
			return nil, errors.Join(err, qp.Close())
		}
	}
	ep, err := rsocket.NewEndpoint(qp, arena, cfg)
	if err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	return &pair{queue: q, qp: qp, ep: ep, arena: arena, rings: rings}, nil
}

// link turns the pair into the link of a connection.
func (p *pair) link(env *Env, r Request) *Link {
	return &Link{
		Shard: r.Shard, QP: p.qp, EP: p.ep, Arena: p.arena, env: env, of: r, queue: p.queue, rings: p.rings,
		probeLen: rsocket.MaxProbe,
	}
}

// close closes a pair that did not become a link. If the queue pair cannot be closed, the
// memory it reaches is not freed.
func (p *pair) close() error {
	p.ep.Leave()
	if err := p.qp.Close(); err != nil {
		return err
	}
	return p.ep.Release()
}

// proofRepeats is how often a proof is sent within its timeout on a lossy carrier, so that
// the loss of any packet is repaired within that time; the transport's own timer would take
// longer.
const proofRepeats = 4

// Prove connects a client's link and sends the probe, one full path MTU; the endpoint's
// EventProved reports that it has come back. A carrier that has already been proved with this
// peer is warm: nothing is left to prove. done is called once, on the shard, possibly before
// Prove returns.
func (l *Link) Prove(to negotiate.CarrierOffer, timeout time.Duration, done func(warm bool, err error)) {
	l.Connect(to, func(err error) {
		warm := err == nil && l.Warm()
		if err == nil && !warm {
			err = l.probe(timeout)
		}
		done(warm, err)
	})
}

// probe sends the probe.
func (l *Link) probe(timeout time.Duration) error {
	l.seed = rand.Uint64()
	if err := l.EP.Probe(l.probeLen, l.seed); err != nil {
		return err
	}
	if l.Lossy {
		l.repeatProof(timeout / proofRepeats)
	}
	return nil
}

// repeatProof resends the probe until something comes back.
func (l *Link) repeatProof(after time.Duration) {
	l.Shard.After(after, func() {
		l.Shard.WorksFor(l.Owner())
		if !l.isProved && l.phase == linkMade && l.EP.Probe(l.probeLen, l.seed) == nil {
			l.repeatProof(after)
		}
	})
}

// Warm reports whether the carrier has been proved with this peer, so that this link need not
// prove it.
func (l *Link) Warm() bool { return !l.of.Cold && l.ProofHolds() }

// ProofHolds reports whether the carrier has been proved with this peer, by any link.
func (l *Link) ProofHolds() bool { return l.medium.warm(l) }

// Proved records that the proof has come back.
func (l *Link) Proved() {
	l.isProved = true
	l.medium.proved(l)
}

// Unproved records that the proof has not come back and that no proof of another link is
// valid.
func (l *Link) Unproved() { l.medium.unproved(l) }
