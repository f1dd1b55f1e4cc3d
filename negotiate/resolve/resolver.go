package resolve

import (
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// Times of the resolution (docs/PROTOCOL.md "Resolution", "Proof and liveness").
const (
	// queryInterval is the time between two queries to a peer about which there is no news.
	queryInterval = time.Minute
	// freshInterval is the least time between two queries to a peer, whatever the news. News of a gateway that is
	// already known does not count within queryInterval.
	freshInterval = 5 * time.Second
	// answerTimeout is how long a query waits for an answer.
	answerTimeout = 2 * time.Second
	// answerTTL is how long our answers are valid; peers renew them after half of that time.
	answerTTL = 10 * time.Minute
	// offersAgain is how soon a query is retried for which this host had no queue pairs.
	offersAgain = time.Second
	// probeInterval is the silence after which a peer is probed, and the time that an echo may take.
	probeInterval = 250 * time.Millisecond
	// probeTries is how many probes without an echo make a proof fail, or show that a peer is gone.
	probeTries = 3

	// newsTTL is how long a sign that a peer has a gateway permits queries to it.
	newsTTL = time.Hour
	// wantMemory is how long a peer stays wanted after an application wrote to it, and how long an idle peer is
	// remembered.
	wantMemory = 10 * time.Minute
	// minValid is the least time for which an answer counts; a shorter one could not be renewed in time.
	minValid = 2 * queryInterval
	// minNative is the least TTL of PeerNative; without it the kernel would report every datagram.
	minNative = time.Second
)

// ResolverConfig configures a Resolver.
type ResolverConfig struct {
	// GatewayID and HostID are those of the CLC messages of this gateway.
	GatewayID, HostID [16]byte
	// Port is the UDP port of this gateway, PeerPort the assumed one of its peers. Default: defaultDatagramPort.
	Port, PeerPort uint16
	// Keys authenticate messages; if empty, messages are not authenticated.
	Keys negotiate.Keys
	// Carriers are the kinds that this gateway can use, best first.
	Carriers []negotiate.CarrierKind
	// MaxPeers bounds the table. Default: 4096.
	MaxPeers int

	// Nonce returns 16 random bytes.
	Nonce func() [16]byte
	// Offers returns our queue pairs for datagrams between these addresses. It is called when a query or an answer is
	// to list them. Nil means that there are none, or that they are not known yet; Resolver.Offered says when they may
	// be.
	Offers func(local, peer netip.Addr) []UDOffer
	// Admit returns the reason to refuse a query of peer for datagrams to local, or ReasonNone to accept them.
	Admit func(local, peer netip.Addr) negotiate.Reason
}

// ResolverState is the state of a peer.
//
//	   ┌────────────── no answer ───────────────┐
//	   ▼                                        │
//	unknown ── Want, news ──► asked ──RESOLVED──┼──► resolved ──► proving ──Proved──► proven
//	   ▲                      ▲ ▲ │             │        ▲            │                │  │
//	   │                      │ │ └─REFUSED, nat┴► refused └─all failed─┘ renewed ◄────┘  │
//	   │                      │ └── Want, news ───── │                                 │
//	   │                      └──── Want, news ─── suspended ◄── silent, hung up ───────┤
//	   └─────────────────────── not used until the answer's end ────────────────────────┘
//
// Only a proven peer is capable. In resolved the offers are known, but all of them have failed; they are tried again
// after a while. A query may be pending in every state; in proven it renews the answer.
type ResolverState uint8

// The states.
const (
	PeerStateUnknown ResolverState = iota
	PeerStateAsked
	PeerStateResolved
	PeerStateProving
	PeerStateProven
	PeerStateSuspended
	PeerStateRefused
)

// ResolverStats counts what a Resolver did.
type ResolverStats struct {
	// Queries counts queries sent; Answers and Refusals count those received that had effect.
	Queries, Answers, Refusals uint64
	// Asked counts queries of peers; Answered and RefusedPeers say how they ended; Limited exceeded the permitted rate.
	Asked, Answered, RefusedPeers, Limited uint64
	// Ignored counts messages without effect: late, duplicated, forged, malformed, or with a wrong nonce or address.
	Ignored uint64
	// Proven and Unreachable count proofs of whole peers, Suspended peers that fell silent.
	Proven, Unreachable, Suspended uint64
	// Overflow counts peers for which the table was full.
	Overflow uint64
}

// Resolver finds out to which hosts datagrams can be carried, and answers hosts that ask the same about this one. It is
// pure: messages, requests, results and the time go in; actions come out. It is not safe for concurrent use.
//
// It guarantees that it sends no query to a host of which it has no news unless the caller says that the operator named
// it, that it sends at most one query a minute to a peer and one for each piece of news, that no answer is longer than
// its query, and that no peer is capable that has not been proved. Its table and the rate of its answers are bounded.
type Resolver struct {
	cfg    ResolverConfig
	peers  map[netip.Addr]*resolverPeer
	limit  *answerLimit
	jar    cookieJar
	proofs uint64
	stats  ResolverStats
	out    []ResolverAction // of the current call
}

// resolverPeer is what is known of one peer address.
type resolverPeer struct {
	addr  netip.Addr
	local netip.Addr     // our address towards it
	to    netip.AddrPort // its datagram port as last heard
	home  netip.AddrPort // its datagram port as announced by CLC messages or an answer, or as configured
	state ResolverState

	named   bool      // by the operator, in a rule
	wanted  time.Time // when an application last had something for it
	touched time.Time

	news      bool // there is news that has not led to a query
	newsID    [16]byte
	newsUntil time.Time
	knownID   [16]byte // gateway of the last answer, or of the news that led to the last query

	asked time.Time // when the last query was sent
	query *resolverQuery
	short time.Time // until then a query waits for our offers; zero if none waits

	gatewayID [16]byte
	offers    []UDOffer // the usable ones of the last answer, best first
	valid     time.Time // when that answer expires
	ttl       time.Duration

	offer   int // index of the offer that is being proved or is proven
	proof   uint64
	attempt int
	excused bool      // excuse was used for the pending query or proof
	proofAt time.Time // when the next attempt is due

	// until is when the peer stops being native for reason.
	until  time.Time
	reason negotiate.Reason
	remote bool
	fails  int // how many times in a row the proofs of all offers failed

	sent, heard time.Time
	probes      int       // sent without an echo
	probeAt     time.Time // when the next probe is due; zero if none is
}

// resolverQuery is a pending query.
type resolverQuery struct {
	nonce    QueryNonce
	mac      negotiate.MAC
	key      []byte // with which it was sealed; nil if it was not
	offers   []UDOffer
	from     netip.AddrPort
	cookie   Cookie // that it had; zero if none
	deadline time.Time
}

// NewResolver returns a Resolver that knows no peer.
func NewResolver(cfg ResolverConfig) *Resolver {
	if cfg.Port == 0 {
		cfg.Port = defaultDatagramPort
	}
	if cfg.PeerPort == 0 {
		cfg.PeerPort = defaultDatagramPort
	}
	if cfg.MaxPeers <= 0 {
		cfg.MaxPeers = 4096
	}
	return &Resolver{
		cfg: cfg, peers: map[netip.Addr]*resolverPeer{}, limit: newAnswerLimit(cfg.Nonce()), jar: newCookieJar(cfg.Nonce),
	}
}

// SetKeys changes the keys. What has been proved stays until it is renewed; a peer that is native because of its key
// may be queried again.
func (r *Resolver) SetKeys(k negotiate.Keys) []ResolverAction {
	r.cfg.Keys = k
	return r.forget(func(p *resolverPeer) bool { return p.reason == negotiate.ReasonAuthFailed })
}

// Want says that an application sends datagrams from local to peer. named says that the peers of a rule that carries
// datagrams include the peer's address, which the caller checks: only then, or with news of the peer, may it be
// queried. Want returns PeerCapable or PeerNative if something is known, and may be called for every datagram.
func (r *Resolver) Want(local, peer netip.Addr, named bool, now time.Time) []ResolverAction {
	p := r.enter(peer, r.cfg.MaxPeers, now)
	if p == nil {
		r.do(PeerNative{Peer: peer.Unmap(), Reason: negotiate.ReasonFlowLimit, TTL: queryInterval})
		return r.done()
	}
	p.wanted, p.named = now, named
	if local = local.Unmap(); p.local != local && p.query == nil && p.state != PeerStateProven && p.state != PeerStateProving {
		p.local, p.valid = local, time.Time{} // an answer is valid only for the address that asked
	}
	switch p.state {
	case PeerStateProven:
		r.capable(p, now)
	case PeerStateAsked, PeerStateProving:
	case PeerStateUnknown, PeerStateResolved, PeerStateSuspended, PeerStateRefused:
		r.wanted(p, now)
	}
	return r.done()
}

// wanted continues with a peer for which nothing is pending.
func (r *Resolver) wanted(p *resolverPeer, now time.Time) {
	ask := p.news && !now.Before(r.mayAsk(p, now)) // news that may not be acted on yet changes nothing
	switch {
	case now.Before(p.until) && !ask:
		r.native(p, now)
	case p.state == PeerStateResolved && now.Before(p.valid) && !ask:
		r.prove(p, 0, now)
	case r.ask(p, now), now.Before(p.short): // otherwise Offered continues
	default:
		r.unasked(p, now)
	}
}

// unasked leaves a peer native that cannot be queried now.
func (r *Resolver) unasked(p *resolverPeer, now time.Time) {
	if !now.Before(p.until) {
		p.state, p.reason, p.remote = PeerStateUnknown, negotiate.ReasonPeerUnresolved, false
		p.until = r.mayAsk(p, now)
	}
	r.native(p, now)
}

// Offered says that the search for offers to a peer, which Offers did not have, has ended. A query that waits for them
// is sent. If there are still none, the peer is native for a moment.
func (r *Resolver) Offered(peer netip.Addr, now time.Time) []ResolverAction {
	p := r.peers[peer.Unmap()]
	if p == nil || p.short.IsZero() {
		return nil
	}
	p.short = time.Time{}
	if !r.ask(p, now) && !p.busy() {
		r.unasked(p, now)
	}
	return r.done()
}

// News says that the host of peer has a gateway that listens on that port, as its CLC messages said (gateway id and
// datagram port). It permits one immediate query, now or as soon as an application wants the peer.
func (r *Resolver) News(local netip.Addr, peer netip.AddrPort, gatewayID [16]byte, now time.Time) []ResolverAction {
	if p := r.enter(peer.Addr(), r.cfg.MaxPeers, now); p != nil {
		if !p.local.IsValid() {
			p.local = local.Unmap()
		}
		p.home = unmapped(peer)
		p.to = p.home
		r.news(p, gatewayID, now)
	}
	return r.done()
}

// news notes a sign that the peer has a gateway. A path that is proven, or being proved, with the same gateway stays.
func (r *Resolver) news(p *resolverPeer, gatewayID [16]byte, now time.Time) {
	p.newsUntil = now.Add(newsTTL)
	same := gatewayID == p.gatewayID
	if p.state == PeerStateProven && same {
		return
	}
	p.news, p.newsID = true, gatewayID
	if p.state == PeerStateProving && same { // useful if the proof fails
		return
	}
	if p.state == PeerStateProven && p.probes == 0 { // the peer has a new gateway, or the message is forged
		r.probe(p, now)
	}
	if r.isWanted(p, now) {
		r.ask(p, now)
	}
}

// Hangup says that the path to peer broke: an shm peer closed its rendezvous, or a queue pair failed.
func (r *Resolver) Hangup(peer netip.Addr, now time.Time) []ResolverAction {
	if p := r.peers[peer.Unmap()]; p != nil {
		switch p.state {
		case PeerStateProven:
			r.suspend(p, now)
		case PeerStateProving:
			r.proofFailed(p, now)
		default:
		}
	}
	return r.done()
}

// Flush forgets all refusals and failures. The limits on queries stay.
func (r *Resolver) Flush() []ResolverAction {
	return r.forget(func(*resolverPeer) bool { return true })
}

// forget withdraws the reasons of the peers that which selects.
func (r *Resolver) forget(which func(p *resolverPeer) bool) []ResolverAction {
	for _, p := range r.peers {
		if p.until.IsZero() || !which(p) {
			continue
		}
		p.until, p.fails = time.Time{}, 0
		r.do(PeerForgotten{Peer: p.addr})
	}
	return r.done()
}

// Stats returns the counters.
func (r *Resolver) Stats() ResolverStats { return r.stats }

// State returns the state of a peer and the reason why it is native.
func (r *Resolver) State(peer netip.Addr) (ResolverState, negotiate.Reason) {
	p := r.peers[peer.Unmap()]
	if p == nil {
		return PeerStateUnknown, negotiate.ReasonNone
	}
	return p.state, p.reason
}

func (r *Resolver) do(a ResolverAction) { r.out = append(r.out, a) }

// done returns the actions of the current call.
func (r *Resolver) done() []ResolverAction {
	out := r.out
	r.out = nil
	return out
}

// enter returns the entry of a peer, which it creates if needed; nil if there are most entries already and none can be
// forgotten.
func (r *Resolver) enter(addr netip.Addr, most int, now time.Time) *resolverPeer {
	addr = addr.Unmap()
	p := r.peers[addr]
	if p == nil {
		if len(r.peers) >= most && !r.makeRoom(now) {
			r.stats.Overflow++
			return nil
		}
		home := netip.AddrPortFrom(addr, r.cfg.PeerPort)
		p = &resolverPeer{addr: addr, to: home, home: home}
		r.peers[addr] = p
	}
	p.touched = now
	return p
}

// makeRoom forgets the disposable peer that has been untouched for longest. It reports whether there was one.
func (r *Resolver) makeRoom(now time.Time) bool {
	var oldest *resolverPeer
	for _, p := range r.peers {
		if p.disposable(now) && (oldest == nil || p.touched.Before(oldest.touched)) {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	delete(r.peers, oldest.addr)
	return true
}

// disposable reports whether nothing is pending and forgetting the time of the last query breaks no limit.
func (p *resolverPeer) disposable(now time.Time) bool {
	return !p.busy() && !now.Before(p.asked.Add(queryInterval))
}

// busy reports whether something is pending or in use.
func (p *resolverPeer) busy() bool {
	return p.query != nil || p.state == PeerStateProving || p.state == PeerStateProven
}

// usable returns the offers that this gateway can use with its own, in the order of its carriers. Shared memory
// requires a common kernel. A device of the other RoCEv2 kind is used only if both sides permit it and they have no
// kind in common.
func (r *Resolver) usable(offers, own []UDOffer, host [16]byte) []UDOffer {
	var list []UDOffer
	common := false
	for _, k := range r.cfg.Carriers {
		o := FindUDOffer(offers, k)
		if o == nil || k == negotiate.CarrierSHM && !r.sameHost(host) {
			continue
		}
		common = common || o.Kind.IsRoCE() && FindUDOffer(own, k) != nil
		exact := *o
		exact.Mixed = false
		list = append(list, exact)
	}
	theirs, ours := findMixed(offers), findMixed(own)
	if common || theirs == nil || ours == nil || theirs.Kind == ours.Kind {
		return list
	}
	list = slices.DeleteFunc(list, func(o UDOffer) bool { return o.Kind == theirs.Kind }) // no device of this host has it
	return append(list, *theirs)
}

func (r *Resolver) sameHost(host [16]byte) bool {
	return host == r.cfg.HostID && host != [16]byte{}
}

// ours returns our offers to a host. Shared memory requires a common kernel.
func (r *Resolver) ours(local, peer netip.Addr, host [16]byte) []UDOffer {
	list := slices.Clone(r.cfg.Offers(local, peer))
	return slices.DeleteFunc(list, func(o UDOffer) bool { return o.Kind == negotiate.CarrierSHM && !r.sameHost(host) })
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
