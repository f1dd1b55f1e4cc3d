package resolve

import (
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// isWanted reports whether an application has lately had something for the peer.
func (r *Resolver) isWanted(p *resolverPeer, now time.Time) bool {
	return !p.wanted.IsZero() && now.Before(p.wanted.Add(wantMemory))
}

// mayAsk returns when the next query to the peer can be sent. For a host about which nothing is known that is always in
// the future.
func (r *Resolver) mayAsk(p *resolverPeer, now time.Time) time.Time {
	if at := r.allowed(p, now); at.After(p.short) {
		return at
	}
	return p.short
}

// allowed returns when the next query to the peer is within the limits.
func (r *Resolver) allowed(p *resolverPeer, now time.Time) time.Time {
	switch {
	case p.news && p.newsID != p.knownID:
		return p.asked.Add(freshInterval)
	case p.news:
		return p.asked.Add(queryInterval)
	case p.named || p.state == PeerStateProven || now.Before(p.newsUntil):
		return p.asked.Add(queryInterval)
	}
	return now.Add(queryInterval)
}

// ask sends a query if one is allowed and none is pending. It reports whether one is pending now.
func (r *Resolver) ask(p *resolverPeer, now time.Time) bool {
	if p.query != nil || now.Before(r.mayAsk(p, now)) {
		return p.query != nil
	}
	offers := r.cfg.Offers(p.local, p.addr)
	if len(offers) == 0 {
		p.short = now.Add(offersAgain)
		return false
	}
	p.short = time.Time{}
	q := &resolverQuery{
		nonce: QueryNonce(r.cfg.Nonce()), from: netip.AddrPortFrom(p.local, r.cfg.Port), deadline: now.Add(answerTimeout),
		offers: offers,
	}
	if p.news {
		p.news, p.knownID = false, p.newsID
	}
	p.query, p.asked, p.excused = q, now, false
	if p.state != PeerStateProven && p.state != PeerStateProving {
		p.state = PeerStateAsked
	}
	r.send(p)
	return true
}

// send sends the pending query of a peer.
func (r *Resolver) send(p *resolverPeer) {
	q := p.query
	msg := AppendResolve(nil, &Resolve{
		Nonce: q.nonce, MinVersion: clc.MinVersion, MaxVersion: clc.Version,
		GatewayID: r.cfg.GatewayID, HostID: r.cfg.HostID, Target: p.to, Cookie: q.cookie, Offers: q.offers,
	})
	if q.key = r.cfg.Keys.First(); q.key != nil {
		msg, q.mac = negotiate.Seal(msg, 0, q.key, negotiate.Chain{Binding: q.binding(p), From: negotiate.FromClient})
	}
	r.stats.Queries++
	r.do(SendResolution{To: p.to, From: p.local, Bytes: msg})
}

// binding returns the two ends of a query.
func (q *resolverQuery) binding(p *resolverPeer) negotiate.Binding {
	return negotiate.Binding{Client: q.from, Server: p.to}
}

// believes reports whether a message answers the query and is properly authenticated: by the query's key, chained to
// its MAC, or, if the refusing side could not believe the query, by any of the keys.
func (r *Resolver) believes(p *resolverPeer, b []byte, refusal bool) bool {
	q := p.query
	chain := negotiate.Chain{Binding: q.binding(p), From: negotiate.FromServer, Prev: q.mac}
	if q.key == nil {
		_, _, err := negotiate.Keys(nil).Verify(b, chain)
		return err == nil
	}
	if _, err := negotiate.Verify(b, q.key, chain); err == nil {
		return true
	}
	chain.Prev = negotiate.MAC{}
	_, _, err := r.cfg.Keys.Verify(b, chain)
	return refusal && err == nil
}

// unanswered ends a query without an answer. A proven peer is queried again before its answer expires.
func (r *Resolver) unanswered(p *resolverPeer, now time.Time) {
	p.query, p.to = nil, p.home
	if p.state == PeerStateAsked {
		r.leave(p, PeerStateUnknown, negotiate.ReasonPeerUnresolved, false, r.mayAsk(p, now), now)
	}
}

// leave makes the peer native until the given time.
func (r *Resolver) leave(p *resolverPeer, s ResolverState, reason negotiate.Reason, remote bool, until, now time.Time) {
	p.state, p.reason, p.remote, p.until = s, reason, remote, until
	r.native(p, now)
}

func (r *Resolver) native(p *resolverPeer, now time.Time) {
	r.do(PeerNative{Peer: p.addr, Reason: p.reason, Remote: p.remote, TTL: max(p.until.Sub(now), minNative)})
}

// awaited returns the peer whose pending query has this address and nonce, or nil.
func (r *Resolver) awaited(from netip.AddrPort, nonce QueryNonce) *resolverPeer {
	p := r.peers[from.Addr()]
	if p == nil || p.query == nil || p.to != from || p.query.nonce != nonce {
		r.stats.Ignored++
		return nil
	}
	return p
}

// resolved processes a RESOLVED.
func (r *Resolver) resolved(from netip.AddrPort, b []byte, now time.Time) {
	a, err := ParseResolved(b)
	if err != nil {
		r.stats.Ignored++
		return
	}
	p := r.awaited(from, a.Nonce)
	if p == nil {
		return
	}
	if !r.believes(p, b, false) {
		r.stats.Ignored++ // the genuine answer may still come
		return
	}
	r.stats.Answers++
	q := p.query
	p.query, p.home = nil, p.to
	offers := r.usable(a.Offers, q.offers, a.HostID)
	switch {
	case a.Version < clc.MinVersion || a.Version > clc.Version:
		r.refused(p, negotiate.ReasonVersion, false, 0, now)
	case a.Observed != q.from:
		r.refused(p, negotiate.ReasonNAT, false, 0, now)
	case a.GatewayID == r.cfg.GatewayID: // an address of this host
		r.refused(p, negotiate.ReasonAddress, false, 0, now)
	case len(offers) == 0:
		r.refused(p, negotiate.ReasonNoCommonCarrier, false, 0, now)
	default:
		r.answered(p, &a, offers, now)
	}
}

// answered continues with a usable answer.
func (r *Resolver) answered(p *resolverPeer, a *Resolved, offers []UDOffer, now time.Time) {
	if a.GatewayID == p.newsID {
		p.news = false
	}
	p.knownID = a.GatewayID
	p.newsUntil = now.Add(newsTTL)
	p.ttl = max(a.TTL, minValid)
	p.valid = now.Add(p.ttl)
	busy := p.state == PeerStateProven || p.state == PeerStateProving
	if busy && a.GatewayID == p.gatewayID {
		if i := slices.Index(offers, p.offers[p.offer]); i >= 0 { // nothing has changed for the path in use
			p.offers, p.offer = offers, i
			if p.state == PeerStateProven {
				r.capable(p, now)
			}
			return
		}
	}
	if busy {
		r.do(PeerGone{Peer: p.addr})
	}
	p.gatewayID, p.offers = a.GatewayID, offers
	p.state = PeerStateResolved
	r.prove(p, 0, now)
}

// refusedBy processes a REFUSED.
func (r *Resolver) refusedBy(from netip.AddrPort, b []byte, now time.Time) {
	a, err := ParseRefused(b)
	if err != nil {
		r.stats.Ignored++
		return
	}
	p := r.awaited(from, a.Nonce)
	if p == nil {
		return
	}
	switch q := p.query; {
	case a.Cookie != Cookie{} && q.cookie != Cookie{}: // duplicated, or the peer has restarted: not a refusal
		r.stats.Ignored++
		return
	case !r.believes(p, b, true): // obeyed nevertheless: a host that can read queries could as well drop them
		a = Refused{Reason: negotiate.ReasonAuthFailed}
	case q.key != nil && a.Cookie != Cookie{}:
		q.cookie, q.deadline = a.Cookie, now.Add(answerTimeout)
		r.send(p)
		return
	}
	r.stats.Refusals++
	p.query, p.home = nil, p.to
	r.refused(p, a.Reason, true, a.TTL, now)
}

// refused leaves the peer native for ttl, bounded to between queryInterval and DefaultNegativeTTL. If ttl is 0, it is
// as long as the peer cache remembers a service for such a reason.
func (r *Resolver) refused(p *resolverPeer, reason negotiate.Reason, remote bool, ttl time.Duration, now time.Time) {
	if p.state == PeerStateProven || p.state == PeerStateProving {
		r.do(PeerGone{Peer: p.addr})
	}
	if ttl == 0 {
		ttl = negotiate.CachePolicy{}.TTL(reason, 1)
	}
	ttl = min(max(ttl, queryInterval), negotiate.DefaultNegativeTTL)
	r.leave(p, PeerStateRefused, reason, remote, now.Add(ttl), now)
}
