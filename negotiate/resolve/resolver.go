package resolve

import (
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// Times of the resolution (docs/PROTOCOL.md "Resolution", "Proof and liveness").
const (
	// queryInterval is the time between two queries to a peer of which there is no news.
	queryInterval = time.Minute
	// freshInterval is the least time between two queries to a peer, whatever the news. News of a gateway that is known
	// already are none within queryInterval.
	freshInterval = 5 * time.Second
	// answerTimeout is how long an answer is waited for.
	answerTimeout = 2 * time.Second
	// answerTTL is how long our answers are valid; they are renewed after half of the time.
	answerTTL = 10 * time.Minute
	// offersAgain is how soon a query goes on for which there were no queue pairs of ours.
	offersAgain = time.Second
	// probeInterval is the silence after which a peer is probed, and the time an echo may take.
	probeInterval = 250 * time.Millisecond
	// probeTries is how many probes without an echo fail a proof, or show that a peer is gone.
	probeTries = 3

	// newsTTL is how long a sign that a peer has a gateway allows to ask it.
	newsTTL = time.Hour
	// wantMemory is how long a peer is still wanted after an application wrote to it, and what is known of one is kept.
	wantMemory = 10 * time.Minute
	// minValid is the least time an answer counts: it could not be renewed in less.
	minValid = 2 * queryInterval
	// minNative keeps the kernel from reporting every datagram.
	minNative = time.Second
)

// ResolverConfig configures a Resolver.
type ResolverConfig struct {
	// GatewayID and HostID are those of this gateway's CLC messages.
	GatewayID, HostID [16]byte
	// Port is the UDP port of this gateway; PeerPort that of peers of which nothing else is known. Default:
	// defaultDatagramPort.
	Port, PeerPort uint16
	// Keys authenticate messages; none: they are not authenticated.
	Keys negotiate.Keys
	// Carriers are the kinds this gateway can use, best first.
	Carriers []negotiate.CarrierKind
	// MaxPeers bounds the table. Default: 4096.
	MaxPeers int

	// Nonce returns 16 random bytes.
	Nonce func() [16]byte
	// Offers returns our queue pairs for datagrams between these addresses. It is called where a query or an answer is to
	// name them. Nil: there are none, or they are not known yet, and Resolver.Offered says when they may be.
	Offers func(local, peer netip.Addr) []UDOffer
	// Admit says whether datagrams of peer to local are taken, or with which reason its query is refused.
	Admit func(local, peer netip.Addr) negotiate.Reason
}

// ResolverState is what a Resolver knows of a peer.
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
// Only a proven peer is capable. In resolved the offers are known, but all of them have failed: they are tried again
// after a while. A query may be under way in every state; in proven it renews the answer.
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

var resolverStateNames = [...]string{"unknown", "asked", "resolved", "proving", "proven", "suspended", "refused"}

// String returns the state's name.
func (s ResolverState) String() string {
	if int(s) < len(resolverStateNames) {
		return resolverStateNames[s]
	}
	return "state_" + strconv.Itoa(int(s))
}

// ResolverStats counts what a Resolver did.
type ResolverStats struct {
	// Queries were sent; Answers and Refusals had effect.
	Queries, Answers, Refusals uint64
	// Asked are queries of peers; Answered and RefusedPeers say how they ended, Limited were more than the rate allows.
	Asked, Answered, RefusedPeers, Limited uint64
	// Ignored are messages without effect: late, twice, with a wrong nonce, from a wrong address, forged, malformed.
	Ignored uint64
	// Proven and Unreachable count proofs of whole peers, Suspended those that fell silent.
	Proven, Unreachable, Suspended uint64
	// Overflow counts peers for which the table had no room.
	Overflow uint64
}

// Resolver finds out to which hosts datagrams can be carried, and answers the hosts that want to find out about this
// one. It is pure: messages, wishes, results and the time go in, actions come out. It is not safe for concurrent use.
//
// What it never does: it sends no query to a host of which it has no news unless the caller says that the operator named
// it; no more queries than one a minute and peer, and one per piece of news; no answer longer than its query; it calls no
// peer capable that has not been proved. Its table is bounded, and so is the rate of answers.
type Resolver struct {
	cfg    ResolverConfig
	peers  map[netip.Addr]*resolverPeer
	limit  answerLimit
	jar    cookieJar
	proofs uint64
	stats  ResolverStats
	out    []ResolverAction // of the call under way
}

// resolverPeer is what is known of one peer address.
type resolverPeer struct {
	addr  netip.Addr
	local netip.Addr     // ours, towards it
	to    netip.AddrPort // its datagram port, as last heard
	home  netip.AddrPort // the same, by its CLC messages, an answer, or the configuration
	state ResolverState

	named   bool      // by the operator
	wanted  time.Time // last sign that an application has something for it
	touched time.Time

	news      bool // unused yet
	newsID    [16]byte
	newsUntil time.Time
	knownID   [16]byte // of the last answer, or the news that led to the last query

	asked time.Time // the last query
	query *resolverQuery
	short time.Time // until then a query waits for offers of ours; zero: none has to

	gatewayID [16]byte
	offers    []UDOffer // usable ones of the last answer, best first
	valid     time.Time // the end of that answer
	ttl       time.Duration

	offer   int // that is being proved, or is proven
	proof   uint64
	attempt int
	excused bool      // excuse was used, of the query or the proof under way
	proofAt time.Time // the next attempt

	// until is how long the peer is left native for reason.
	until  time.Time
	reason negotiate.Reason
	remote bool
	fails  int // proofs of all offers in a row

	sent, heard time.Time
	probes      int       // without an echo
	probeAt     time.Time // zero: nothing is waited for
}

// resolverQuery is a query that waits for its answer.
type resolverQuery struct {
	nonce    QueryNonce
	mac      negotiate.MAC
	key      []byte // it was sealed with; nil: with none
	offers   []UDOffer
	from     netip.AddrPort
	cookie   Cookie // it was sent with; zero: none
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
		cfg: cfg, peers: map[netip.Addr]*resolverPeer{}, limit: answerLimit{salt: cfg.Nonce()}, jar: newCookieJar(cfg.Nonce),
	}
}

// SetKeys changes the keys. What has been proved stays until it is renewed; a peer that was refused for the key is
// asked again.
func (r *Resolver) SetKeys(k negotiate.Keys) []ResolverAction {
	r.cfg.Keys = k
	return r.forget(func(p *resolverPeer) bool { return p.reason == negotiate.ReasonAuthFailed })
}

// Want says that an application sends datagrams from local to peer. named says that a rule which carries datagrams has the
// peer's address in its list of peers: only then, or with news of the peer, it may be asked; that check is the caller's.
// It answers with PeerCapable or PeerNative where something is known, and may be called for every datagram.
func (r *Resolver) Want(local, peer netip.Addr, named bool, now time.Time) []ResolverAction {
	p := r.enter(peer, r.cfg.MaxPeers, now)
	if p == nil {
		r.do(PeerNative{Peer: peer.Unmap(), Reason: negotiate.ReasonFlowLimit, TTL: queryInterval})
		return r.done()
	}
	p.wanted, p.named = now, named
	if local = local.Unmap(); p.local != local && p.query == nil && p.state != PeerStateProven && p.state != PeerStateProving {
		p.local, p.valid = local, time.Time{} // an answer is about the address that has asked
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

// wanted goes on with a peer for which nothing is under way.
func (r *Resolver) wanted(p *resolverPeer, now time.Time) {
	ask := p.news && !now.Before(r.mayAsk(p, now)) // news that may not be acted on yet change nothing
	switch {
	case now.Before(p.until) && !ask:
		r.native(p, now)
	case p.state == PeerStateResolved && now.Before(p.valid) && !ask:
		r.prove(p, 0, now)
	case r.ask(p, now), now.Before(p.short): // or Offered goes on
	default:
		r.unasked(p, now)
	}
}

// unasked leaves a peer native that cannot be asked now.
func (r *Resolver) unasked(p *resolverPeer, now time.Time) {
	if !now.Before(p.until) {
		p.state, p.reason, p.remote = PeerStateUnknown, negotiate.ReasonPeerUnresolved, false
		p.until = r.mayAsk(p, now)
	}
	r.native(p, now)
}

// Offered says that the look for offers to a peer has ended, of which Offers had none. A query that waits for them goes
// out. If there is still none, the peer is left native for a moment.
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

// News says that the host of peer has a gateway that listens there, which its CLC message has told (gateway id and
// datagram port). It allows one query at once, if an application wants the peer or as soon as one does.
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

// news takes a sign that the peer has a gateway. What is proven, or about to be, with the same gateway stays.
func (r *Resolver) news(p *resolverPeer, gatewayID [16]byte, now time.Time) {
	p.newsUntil = now.Add(newsTTL)
	same := gatewayID == p.gatewayID
	if p.state == PeerStateProven && same {
		return
	}
	p.news, p.newsID = true, gatewayID
	if p.state == PeerStateProving && same { // of use if the proof fails
		return
	}
	if p.state == PeerStateProven && p.probes == 0 { // it has another gateway now, or the message is forged
		r.probe(p, now)
	}
	if r.isWanted(p, now) {
		r.ask(p, now)
	}
}

// Hangup says that the way to peer broke: an shm peer closed its rendezvous, a queue pair failed.
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

// Flush forgets every refusal and every failure. The limits of the queries stay.
func (r *Resolver) Flush() []ResolverAction {
	return r.forget(func(*resolverPeer) bool { return true })
}

// forget forgets why some peers are left native.
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

// State returns what is known of a peer, and why it is left native.
func (r *Resolver) State(peer netip.Addr) (ResolverState, negotiate.Reason) {
	p := r.peers[peer.Unmap()]
	if p == nil {
		return PeerStateUnknown, negotiate.ReasonNone
	}
	return p.state, p.reason
}

// Len returns the number of peers in the table.
func (r *Resolver) Len() int { return len(r.peers) }

func (r *Resolver) do(a ResolverAction) { r.out = append(r.out, a) }

// done returns the actions of this call.
func (r *Resolver) done() []ResolverAction {
	out := r.out
	r.out = nil
	return out
}

// enter finds or makes the entry of a peer; nil if there are that many and none can be forgotten.
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

// makeRoom forgets the disposable peer that was not heard of for longest.
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

// disposable says that nothing is under way and that forgetting the last query breaks no limit.
func (p *resolverPeer) disposable(now time.Time) bool {
	return !p.busy() && !now.Before(p.asked.Add(queryInterval))
}

// busy says that something is under way or in use.
func (p *resolverPeer) busy() bool {
	return p.query != nil || p.state == PeerStateProving || p.state == PeerStateProven
}

// usable picks the offers this gateway can use beside its own, in the order of its carriers. Shared memory needs one
// kernel. An offer is for a device of the other RoCEv2 kind only where both sides say so, and have no kind in common.
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

// ours are our offers for an answer to a host; shared memory needs one kernel.
func (r *Resolver) ours(local, peer netip.Addr, host [16]byte) []UDOffer {
	list := slices.Clone(r.cfg.Offers(local, peer))
	return slices.DeleteFunc(list, func(o UDOffer) bool { return o.Kind == negotiate.CarrierSHM && !r.sameHost(host) })
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
