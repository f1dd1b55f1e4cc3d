package resolve

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// Receive processes a datagram that came from a peer to local, an address and port of this gateway. A query that
// deserves an answer comes out as AnswerPeer; Offers is not called for any other.
func (r *Resolver) Receive(local, from netip.AddrPort, b []byte, now time.Time) []ResolverAction {
	local, from = unmapped(local), unmapped(from)
	h, _, err := clc.ParseHeader(b)
	if err != nil {
		r.stats.Ignored++
		return nil
	}
	switch h.Type {
	case clc.TypeResolve:
		r.check(local, from, b, now)
	case clc.TypeResolved:
		r.resolved(from, b, now)
	case clc.TypeRefused:
		r.refusedBy(from, b, now)
	default:
		r.stats.Ignored++
	}
	return r.done()
}

// check decides whether a query is to be answered, and refuses it if not.
func (r *Resolver) check(local, from netip.AddrPort, b []byte, now time.Time) {
	nonce, ok := QueryNonceOf(b)
	if !ok {
		r.stats.Ignored++
		return
	}
	if !r.fromGateway(from) {
		r.stats.Ignored++
		return
	}
	r.stats.Asked++
	if !r.limit.allow(from.Addr(), now) {
		r.stats.Limited++
		return
	}
	q, err := parseResolve(b)
	if err != nil {
		if _, ok := errors.AsType[*clc.CriticalTLVError](err); ok {
			r.refuse(local, from, r.unbelieved(), Refused{Nonce: nonce, Reason: negotiate.ReasonOf(err)})
			return
		}
		r.stats.Ignored++
		return
	}
	if q.GatewayID == r.cfg.GatewayID { // from this host, or mirrored
		r.stats.Ignored++
		return
	}
	seal, ok := r.authentic(local, from, &q, b, now)
	if !ok {
		return
	}
	if reason := r.refusal(local, from, &q); reason != negotiate.ReasonNone {
		r.refuse(local, from, seal, Refused{Nonce: nonce, Reason: reason})
		return
	}
	r.do(AnswerPeer{Query: q, From: from, Local: local, seal: seal})
}

// Answer answers a query that has passed the checks, once the owner knows what to offer. It keeps no state about the
// sender except the news that it has a gateway.
func (r *Resolver) Answer(a AnswerPeer, now time.Time) []ResolverAction {
	q, local, from, seal := &a.Query, a.Local, a.From, a.seal
	offers, reason := r.decide(local, from, q)
	if reason != negotiate.ReasonNone {
		r.refuse(local, from, seal, Refused{Nonce: q.Nonce, Reason: reason})
		return r.done()
	}
	msg := appendResolved(nil, &Resolved{
		Version: min(clc.Version, q.MaxVersion), Nonce: q.Nonce, GatewayID: r.cfg.GatewayID, HostID: r.cfg.HostID,
		Observed: from, TTL: answerTTL, Offers: offers,
	})
	r.stats.Answered++
	r.do(SendResolution{To: from, From: local.Addr(), Bytes: seal.seal(msg, local, from)})
	r.do(ExpectPeer{
		Peer: from.Addr(), Local: local.Addr(), GatewayID: q.GatewayID, Offers: r.usable(q.Offers, offers, q.HostID), TTL: answerTTL,
	})
	r.askBack(local.Addr(), from, q.GatewayID, now)
	return r.done()
}

// fromGateway reports whether a query came from the datagram port of its host: the announced one or the default. From
// any other port an unprivileged user of that host could ask, and would receive what is meant for the host's gateway.
func (r *Resolver) fromGateway(from netip.AddrPort) bool {
	if p := r.peers[from.Addr()]; p != nil && p.home.Port() == from.Port() {
		return true
	}
	return from.Port() == r.cfg.PeerPort
}

// sealing says how an answer is authenticated: with the key of the query, chained to it.
type sealing struct {
	key   []byte // nil: unauthenticated
	query negotiate.MAC
}

func (s sealing) seal(msg []byte, local, from netip.AddrPort) []byte {
	if s.key == nil {
		return msg
	}
	msg, _ = negotiate.Seal(msg, 0, s.key, negotiate.Chain{Binding: negotiate.Binding{Client: from, Server: local}, From: negotiate.FromServer, Prev: s.query})
	return msg
}

// unbelieved returns the sealing for the refusal of a query that was not believed, or not parsed up to its MAC.
func (r *Resolver) unbelieved() sealing { return sealing{key: r.cfg.Keys.First()} }

// authentic reports whether a query is believed. If not, it refuses it; a query without our cookie is told the cookie.
func (r *Resolver) authentic(local, from netip.AddrPort, q *Resolve, b []byte, now time.Time) (sealing, bool) {
	key, mac, err := r.cfg.Keys.Verify(b, negotiate.Chain{Binding: negotiate.Binding{Client: from, Server: local}, From: negotiate.FromClient})
	refusal := Refused{Nonce: q.Nonce, Reason: negotiate.ReasonAuthFailed}
	switch {
	case err != nil:
		r.refuse(local, from, r.unbelieved(), refusal)
		return sealing{}, false
	case key != nil && !r.jar.knows(q.Cookie, local, from, q.Nonce, now):
		refusal.Cookie = r.jar.fresh(local, from, q.Nonce, now)
		r.refuse(local, from, sealing{key, mac}, refusal)
		return sealing{}, false
	}
	return sealing{key, mac}, true
}

// refusal returns the reason why the sender gets no answer, regardless of what could be offered.
func (r *Resolver) refusal(local, from netip.AddrPort, q *Resolve) negotiate.Reason {
	if q.MinVersion > clc.Version || q.MaxVersion < clc.MinVersion {
		return negotiate.ReasonVersion
	}
	if q.Target != local {
		return negotiate.ReasonNAT
	}
	return r.cfg.Admit(local.Addr(), from.Addr())
}

// decide returns our offers, or the reason why the sender gets none. It repeats the check, because the gateway may have
// been switched off in the meantime.
func (r *Resolver) decide(local, from netip.AddrPort, q *Resolve) ([]UDOffer, negotiate.Reason) {
	if reason := r.refusal(local, from, q); reason != negotiate.ReasonNone {
		return nil, reason
	}
	offers := r.ours(local.Addr(), from.Addr(), q.HostID)
	for _, o := range r.usable(q.Offers, offers, q.HostID) {
		if o.Mixed || FindUDOffer(offers, o.Kind) != nil {
			return offers, negotiate.ReasonNone
		}
	}
	return nil, negotiate.ReasonNoCommonCarrier
}

func (r *Resolver) refuse(local, from netip.AddrPort, s sealing, why Refused) {
	if why.Cookie == (Cookie{}) {
		r.stats.RefusedPeers++
	}
	r.do(SendResolution{To: from, From: local.Addr(), Bytes: s.seal(encodeRefused(why), local, from)})
}

// askBack sends a query to the sender of one: its application has sent something, so ours will have answers. Nothing
// proves that the peer itself asked, so unproved senders get only half of the table, and the port of a peer in use does
// not change.
func (r *Resolver) askBack(local netip.Addr, from netip.AddrPort, gatewayID [16]byte, now time.Time) {
	p := r.enter(from.Addr(), max(r.cfg.MaxPeers/2, 1), now)
	if p == nil {
		return
	}
	p.wanted = now
	if p.query == nil && p.state != PeerStateProven && p.state != PeerStateProving {
		p.local, p.to = local, from
	}
	r.news(p, gatewayID, now)
}

// Rates of answers: more than hosts with peers need, yet little work for a processor.
const (
	answersPerSecond = 500 // to all addresses, with bursts of twice as many
	answersPerSource = 2   // to one bucket of addresses, with bursts of five times as many
	answerSources    = 256
)

// answerLimit bounds the rate of all answers and of those to one address. Addresses share buckets by a salted hash,
// which no other host can compute.
type answerLimit struct {
	salt    [16]byte
	all     *rate.Limiter
	sources [answerSources]*rate.Limiter
}

func newAnswerLimit(salt [16]byte) *answerLimit {
	l := &answerLimit{salt: salt, all: rate.NewLimiter(answersPerSecond, 2*answersPerSecond)}
	for i := range l.sources {
		l.sources[i] = rate.NewLimiter(answersPerSource, 5*answersPerSource)
	}
	return l
}

func (l *answerLimit) allow(a netip.Addr, now time.Time) bool {
	h := uint32(2166136261) // FNV-1a; the salt makes it unpredictable enough here
	ip := a.As16()
	for i, c := range ip {
		if a.Is6() && i >= 8 { // one host can use its whole /64
			break
		}
		h = (h ^ uint32(c^l.salt[i])) * 16777619
	}
	return l.sources[h%answerSources].AllowN(now, 1) && l.all.AllowN(now, 1)
}

// Cookie is what a gateway with a key demands in a RESOLVE before it believes it. The gateway has sent it to the
// sender's address shortly before, for this very query. So a recorded query is worthless later or from elsewhere, and
// the gateway keeps no state about senders.
type Cookie [16]byte

// cookieInterval is how long the same cookie is given out; it is accepted for as long again.
const cookieInterval = 30 * time.Second

// cookieJar makes and recognises cookies.
type cookieJar struct {
	secret [32]byte
	born   time.Time
}

func newCookieJar(nonce func() [16]byte) cookieJar {
	var j cookieJar
	a, b := nonce(), nonce()
	copy(j.secret[:], a[:])
	copy(j.secret[16:], b[:])
	return j
}

// epoch returns the number of intervals since the first use.
func (j *cookieJar) epoch(now time.Time) uint64 {
	if j.born.IsZero() {
		j.born = now
	}
	return uint64(max(now.Sub(j.born), 0) / cookieInterval)
}

// make returns the cookie for the query with the given nonce between two ends.
func (j *cookieJar) make(epoch uint64, local, from netip.AddrPort, nonce QueryNonce) Cookie {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 8+2*(16+2)+len(nonce)), epoch)
	for _, end := range []netip.AddrPort{local, from} {
		ip := end.Addr().As16()
		b = binary.BigEndian.AppendUint16(append(b, ip[:]...), end.Port())
	}
	h := hmac.New(sha256.New, j.secret[:])
	h.Write(append(b, nonce[:]...))
	return Cookie(h.Sum(nil)[:len(Cookie{})])
}

// fresh returns the cookie to give out at now.
func (j *cookieJar) fresh(local, from netip.AddrPort, nonce QueryNonce, now time.Time) Cookie {
	return j.make(j.epoch(now), local, from, nonce)
}

// knows reports whether c was given out for this query in the current interval or the one before.
func (j *cookieJar) knows(c Cookie, local, from netip.AddrPort, nonce QueryNonce, now time.Time) bool {
	e := j.epoch(now)
	for _, told := range []uint64{e, max(e, 1) - 1} {
		if want := j.make(told, local, from, nonce); hmac.Equal(want[:], c[:]) {
			return true
		}
	}
	return false
}
