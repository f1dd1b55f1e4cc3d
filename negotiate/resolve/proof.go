package resolve

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// prove begins the proof of offer i.
func (r *Resolver) prove(p *resolverPeer, i int, now time.Time) {
	r.proofs++
	p.state, p.offer, p.proof, p.attempt, p.excused = PeerStateProving, i, r.proofs, 0, false
	p.until, p.reason, p.remote = time.Time{}, negotiate.ReasonNone, false
	r.attempt(p, now)
}

func (r *Resolver) attempt(p *resolverPeer, now time.Time) {
	p.attempt++
	p.proofAt = now.Add(probeInterval)
	r.do(ProvePeer{
		Peer: p.addr, Local: p.local, GatewayID: p.gatewayID, Proof: p.proof, Attempt: p.attempt, Offer: p.offers[p.offer],
	})
}

// Proved takes the result of ProvePeer. It ignores results of earlier proofs.
func (r *Resolver) Proved(peer netip.Addr, proof uint64, ok bool, now time.Time) []ResolverAction {
	p := r.peers[peer.Unmap()]
	if p == nil || p.state != PeerStateProving || p.proof != proof {
		return nil
	}
	if !ok {
		r.proofFailed(p, now)
		return r.done()
	}
	r.stats.Proven++
	p.state, p.fails, p.touched = PeerStateProven, 0, now
	if p.newsID == p.gatewayID {
		p.news = false
	}
	p.sent, p.heard, p.probes, p.probeAt = now, now, 0, time.Time{}
	r.capable(p, now)
	return r.done()
}

// proofFailed tries the next offer. When none is left, the peer is native for a while, which doubles each time.
func (r *Resolver) proofFailed(p *resolverPeer, now time.Time) {
	if p.offer+1 < len(p.offers) {
		r.prove(p, p.offer+1, now)
		return
	}
	r.stats.Unreachable++
	p.fails++
	r.do(PeerGone{Peer: p.addr})
	until := now.Add(negotiate.CachePolicy{}.TTL(negotiate.ReasonCarrierUnreachable, p.fails))
	r.leave(p, PeerStateResolved, negotiate.ReasonCarrierUnreachable, false, until, now)
	if p.news && r.isWanted(p, now) {
		r.ask(p, now)
	}
}

// capable announces that a peer is capable. If the answer is just expiring, the TTL is minNative until the next Tick,
// since 0 would mean forever.
func (r *Resolver) capable(p *resolverPeer, now time.Time) {
	r.do(PeerCapable{
		Peer: p.addr, Local: p.local, GatewayID: p.gatewayID, Offer: p.offers[p.offer], TTL: max(p.valid.Sub(now), minNative),
	})
}

// Traffic says when something was last sent to a proven peer and last heard from it (datagrams, probes, echoes). Call
// it every 100 ms or so while there is traffic, before Tick.
func (r *Resolver) Traffic(peer netip.Addr, sent, heard, now time.Time) {
	p := r.peers[peer.Unmap()]
	if p == nil || p.state != PeerStateProven {
		return
	}
	if heard.After(p.heard) {
		p.heard, p.probes, p.probeAt, p.wanted = heard, 0, time.Time{}, now
	}
	if sent.After(p.sent) {
		p.sent, p.wanted = sent, now
	}
	if p.probeAt.IsZero() && p.sent.After(p.heard) {
		p.probeAt = p.sent.Add(probeInterval)
	}
}

func (r *Resolver) probe(p *resolverPeer, now time.Time) {
	p.probes++
	p.probeAt = now.Add(probeInterval)
	r.do(ProbePeer{Peer: p.addr})
}

// suspend gives up a proven peer. It is queried again when limits allow it and an application wants it.
func (r *Resolver) suspend(p *resolverPeer, now time.Time) {
	r.stats.Suspended++
	p.probes, p.probeAt = 0, time.Time{}
	r.do(PeerGone{Peer: p.addr})
	r.leave(p, PeerStateSuspended, negotiate.ReasonPeerDead, false, r.mayAsk(p, now), now)
	if p.query != nil { // to renew the answer, or because of news: its result decides
		p.state = PeerStateAsked
	} else if p.news && r.isWanted(p, now) {
		r.ask(p, now)
	}
}

// Tick acts on what is due. Call it at Deadline.
func (r *Resolver) Tick(now time.Time) []ResolverAction {
	for _, p := range r.peers {
		if now.Before(r.due(p)) {
			continue
		}
		r.tick(p, now)
		if p.disposable(now) && !now.Before(p.forget()) {
			delete(r.peers, p.addr)
		}
	}
	return r.done()
}

func (r *Resolver) tick(p *resolverPeer, now time.Time) {
	switch q := p.query; {
	case q == nil || now.Before(q.deadline):
	case p.excuse(q.deadline, answerTimeout, now):
		q.deadline = now.Add(answerTimeout)
		r.send(p)
	default:
		r.unanswered(p, now)
	}
	switch p.state {
	case PeerStateProving:
		r.tickProof(p, now)
	case PeerStateProven:
		r.tickProven(p, now)
	default:
	}
	if !p.newsDue() || now.Before(r.mayAsk(p, now)) {
		return
	}
	if !r.isWanted(p, now) {
		p.wanted = time.Time{} // the news is kept for the next Want
		return
	}
	r.ask(p, now)
}

// lateShare: a timer that fires late by more than this part of its wait excuses the peer.
const lateShare = 4

// excuse reports whether the end of a wait is noticed so late that the peer cannot be blamed, and gets the time again.
// It does so only once for each query and each proof.
func (p *resolverPeer) excuse(end time.Time, wait time.Duration, now time.Time) bool {
	if p.excused || now.Sub(end) < wait/lateShare {
		return false
	}
	p.excused = true
	return true
}

// newsDue reports whether there is news to act on as soon as a query is allowed.
func (p *resolverPeer) newsDue() bool {
	proving := p.state == PeerStateProving && p.newsID == p.gatewayID
	return p.news && p.query == nil && !p.wanted.IsZero() && !proving
}

func (r *Resolver) tickProof(p *resolverPeer, now time.Time) {
	switch {
	case now.Before(p.proofAt):
	case p.attempt < probeTries || p.excuse(p.proofAt, probeInterval, now):
		r.attempt(p, now)
	default:
		r.proofFailed(p, now)
	}
}

func (r *Resolver) tickProven(p *resolverPeer, now time.Time) {
	switch {
	case !p.probeAt.IsZero() && !now.Before(p.probeAt):
		if p.probes == probeTries {
			r.suspend(p, now)
			return
		}
		r.probe(p, now)
	case !now.Before(p.valid):
		r.do(PeerGone{Peer: p.addr})
		r.leave(p, PeerStateUnknown, negotiate.ReasonPeerUnresolved, false, r.mayAsk(p, now), now)
	case p.used() && !now.Before(p.renewal()):
		r.ask(p, now)
	}
}

// used reports whether the answer has been of use since it came.
func (p *resolverPeer) used() bool {
	since := p.valid.Add(-p.ttl)
	return p.sent.After(since) || p.heard.After(since)
}

// renewal returns when to renew the answer: after half of its time to live, and then every minute.
func (p *resolverPeer) renewal() time.Time {
	at := p.valid.Add(-p.ttl / 2)
	for _, next := range []time.Time{p.asked.Add(queryInterval), p.short} {
		if next.After(at) {
			at = next
		}
	}
	return at
}

// forget returns when an idle peer leaves the table.
func (p *resolverPeer) forget() time.Time {
	t := p.touched.Add(wantMemory)
	for _, end := range []time.Time{p.until, p.newsUntil, p.asked.Add(queryInterval)} {
		if end.After(t) {
			t = end
		}
	}
	return t
}

// Deadline returns when Tick must be called, or zero if never.
func (r *Resolver) Deadline() time.Time {
	var first time.Time
	for _, p := range r.peers {
		if due := r.due(p); first.IsZero() || due.Before(first) {
			first = due
		}
	}
	return first
}

// due returns when tick has something to do for a peer.
func (r *Resolver) due(p *resolverPeer) time.Time {
	var t time.Time
	sooner := func(at time.Time) {
		if t.IsZero() || at.Before(t) {
			t = at
		}
	}
	if p.query != nil {
		sooner(p.query.deadline)
	}
	if !p.busy() {
		sooner(p.forget())
	}
	if p.newsDue() {
		sooner(r.mayAsk(p, time.Time{}))
	}
	switch p.state {
	case PeerStateProving:
		sooner(p.proofAt)
	case PeerStateProven:
		sooner(p.valid)
		if !p.probeAt.IsZero() {
			sooner(p.probeAt)
		}
		if p.query == nil && p.used() {
			sooner(p.renewal())
		}
	default:
	}
	return t
}
