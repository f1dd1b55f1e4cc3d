package datagram

import (
	"crypto/rand"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
)

const (
	// trafficEvery is how often the resolver is told about traffic.
	trafficEvery = 100 * time.Millisecond
	// waysFor is how long the ways found for a pair of addresses are cached.
	waysFor = time.Minute
	// waysAgain is how long it is cached that there are none.
	waysAgain = time.Second
	// waysMost bounds the cached pairs.
	waysMost = 2 * maxPeers
)

// newResolver makes the resolver, a state machine that belongs to the shard.
func (e *engine) newResolver() *resolve.Resolver {
	cfg := resolve.ResolverConfig{
		GatewayID: e.cfg.GatewayID, HostID: e.cfg.HostID, Port: e.cfg.Port, PeerPort: e.cfg.Port,
		Keys: e.cfg.Keys, MaxPeers: maxPeers, Offers: e.offers, Admit: e.admit,
		Nonce: func() (n [16]byte) {
			_, _ = rand.Read(n[:]) // never fails
			return n
		},
	}
	for _, prov := range e.cfg.Providers {
		cfg.Carriers = append(cfg.Carriers, prov.Kind())
	}
	return resolve.NewResolver(cfg)
}

// knownWays is what the keeper has found for a pair of addresses.
type knownWays struct {
	list []way
	at   time.Time
}

// wayOf returns the way by which a queue pair of the peer is reached, or nil if there is none
// or no longer any: the way of its kind or, for ends of different kinds, the one that allows
// that. Memory can be shared with one peer twice, once offered by each side.
func (e *engine) wayOf(pair addrPair, o *resolve.UDOffer) *way {
	list := e.ways[pair].list
	for i := range list {
		w := &list[i]
		if w.reaches(o) && !w.gone() {
			return w
		}
	}
	return nil
}

// offers returns the offers for a pair of addresses, one way per kind. While a query is being
// answered, that is the way named by the query, if it names one. For a query of this gateway
// with no fresh ways, it starts a look and returns nothing; the resolver is told when the
// ways are known.
func (e *engine) offers(local, peer netip.Addr) (list []resolve.UDOffer) {
	pair := addrPair{local, peer}
	if e.query == nil && !e.fresh(pair) {
		e.look(pair, nil, func() { e.act(e.resolve.Offered(peer, e.now)) })
		return nil
	}
	ways := e.ways[pair].list
	for i := range ways {
		w := &ways[i]
		if w.gone() || resolve.FindUDOffer(list, w.port.kind) != nil {
			continue
		}
		if e.query != nil {
			if o := resolve.FindUDOffer(e.query.Offers, w.port.kind); o != nil && o.Key != w.offer.Key {
				continue
			}
		}
		list = append(list, w.offer)
	}
	return list
}

// admit returns why datagrams of a peer are not accepted at all, or ReasonNone.
func (e *engine) admit(local, peer netip.Addr) negotiate.Reason {
	switch {
	case e.quiet != negotiate.ReasonNone:
		return e.quiet
	case e.gateway.Off():
		return negotiate.ReasonOff
	}
	if _, err := e.route(addrPair{local, peer}); err != nil { // what it sent could not be written to the app TUN
		return negotiate.ReasonAddress
	}
	return negotiate.ReasonNone
}

// fresh reports whether the cached ways of a pair can be used.
func (e *engine) fresh(pair addrPair) bool {
	have, ok := e.ways[pair]
	long := waysFor
	if len(have.list) == 0 {
		long = waysAgain
	}
	return ok && e.now.Sub(have.at) < long && !slices.ContainsFunc(have.list, way.gone)
}

// look makes the keeper find the ways of a pair, and then calls then on the shard. q is the
// peer's query, or nil if this gateway will send one.
func (e *engine) look(pair addrPair, q *resolve.Resolve, then func()) {
	if !e.keeper.ways(pair, q, func(list []way) {
		if e.stopped {
			return
		}
		if _, known := e.ways[pair]; !known && len(e.ways) >= waysMost {
			e.forgetWays()
		}
		for _, w := range e.ways[pair].list { // what was offered before stays valid
			if !w.gone() && !slices.ContainsFunc(list, func(o way) bool { return o.port == w.port }) {
				list = append(list, w)
			}
		}
		e.ways[pair] = knownWays{list: list, at: e.now}
		then()
	}) {
		e.count.ignored.Add(1)
	}
}

// forgetWays forgets the ways of one pair: the oldest of a peer that the resolver has no use
// for, or else the oldest.
func (e *engine) forgetWays() {
	var oldest addrPair
	var at time.Time
	useful := true
	for pair, w := range e.ways {
		state, _ := e.resolve.State(pair.remote)
		if use := state != resolve.PeerStateUnknown; at.IsZero() || useful && !use || useful == use && w.at.Before(at) {
			oldest, at, useful = pair, w.at, use
		}
	}
	delete(e.ways, oldest)
}

// message handles a datagram received on the datagram port.
func (e *engine) message(local, from netip.AddrPort, b []byte) {
	e.act(e.resolve.Receive(local, from, b, e.now))
}

// answer answers a peer's query, once the ways are known.
func (e *engine) answer(a resolve.AnswerPeer) {
	e.look(addrPair{a.Local.Addr(), a.From.Addr()}, &a.Query, func() {
		e.query = &a.Query
		e.act(e.resolve.Answer(a, e.now))
		e.query = nil
	})
}

// want tells the resolver that a local program sends to a peer that is not capable.
func (e *engine) want(pair addrPair) {
	if e.quiet != negotiate.ReasonNone {
		return
	}
	e.act(e.resolve.Want(pair.local, pair.remote, e.gateway.NamesPeer(pair.remote), e.now))
}

// news tells the resolver that a peer gateway has a datagram port.
func (e *engine) news(local netip.Addr, at netip.AddrPort, gateway [16]byte) {
	e.act(e.resolve.News(local, at, gateway, e.now))
}

// act executes the resolver's actions.
func (e *engine) act(list []resolve.ResolverAction) {
	for _, a := range list {
		switch a := a.(type) {
		case resolve.SendResolution:
			if err := e.sockets.send(a); err != nil {
				e.log.Debug("send on the datagram port", "to", a.To, "error", err)
			}
		case resolve.AnswerPeer:
			e.answer(a)
		case resolve.ExpectPeer:
			e.expect(a)
		case resolve.ProvePeer:
			e.prove(a)
		case resolve.ProbePeer:
			if p := e.peers[a.Peer]; p != nil {
				if l := p.reach(); l != nil {
					l.probe(l.mtu) // a path that has become narrower counts as lost
				}
			}
		case resolve.PeerCapable:
			e.peerCapable(a)
		case resolve.PeerNative:
			e.native(a.Peer, a.Reason, a.TTL)
		case resolve.PeerGone:
			if p := e.peers[a.Peer]; p != nil {
				p.cur = nil
			}
		case resolve.PeerForgotten:
			if err := e.steer.ForgetDatagramPeer(a.Peer, 0); err != nil {
				e.log.Warn("tell programs about datagram peer", "peer", a.Peer, "error", err)
			}
		}
	}
}

// expect makes the links that a peer may send on once it has the answer.
func (e *engine) expect(a resolve.ExpectPeer) {
	pair := addrPair{a.Local, a.Peer}
	for i := range a.Offers {
		o := &a.Offers[i]
		w := e.wayOf(pair, o)
		if w == nil {
			continue
		}
		if _, err := e.link(pair, w, o, a.GatewayID, false); err != nil {
			e.log.Debug("expect datagram peer", "peer", a.Peer, "carrier", o.Kind, "error", err)
		}
	}
}

// prove sends a probe to a queue pair that the peer has named.
func (e *engine) prove(a resolve.ProvePeer) {
	pair := addrPair{a.Local, a.Peer}
	w, err := e.wayOf(pair, &a.Offer), errNotHere
	if w != nil {
		var l *link
		if l, err = e.link(pair, w, &a.Offer, a.GatewayID, true); err == nil && l.prove(a.Proof) {
			return
		}
	}
	e.log.Debug("prove datagram peer", "peer", a.Peer, "carrier", a.Offer.Kind, "error", err)
	e.act(e.resolve.Proved(a.Peer, a.Proof, false, e.now))
}

// peerCapable uses the link that the resolver has chosen for datagrams. If that link is gone,
// the peer is queried again: a link that carries nothing can disappear unnoticed.
func (e *engine) peerCapable(a resolve.PeerCapable) {
	if p := e.peers[a.Peer]; p != nil {
		for _, l := range p.links {
			if l.local == a.Local && l.qpn == a.Offer.QPN && l.kind == a.Offer.Kind && l.gateway == a.GatewayID && l.valid && !l.port.is(portGone) {
				e.capable(l, a.TTL)
				return
			}
		}
	}
	e.act(e.resolve.Hangup(a.Peer, e.now))
}

// tickResolver reports traffic to the resolver and runs its timers.
func (e *engine) tickResolver() {
	for _, p := range e.peers {
		if p.reach() != nil && e.now.Sub(p.told) >= trafficEvery && (p.sent.After(p.told) || p.alive.After(p.told)) {
			p.told = e.now
			e.resolve.Traffic(p.addr, p.sent, p.alive, e.now)
		}
	}
	if at := e.resolve.Deadline(); !at.IsZero() && !e.now.Before(at) {
		e.act(e.resolve.Tick(e.now))
	}
}

// queryCounts copies the resolver's counters.
func (e *engine) queryCounts() {
	s := e.resolve.Stats()
	c := &e.count
	c.queries.Store(s.Queries)
	c.answers.Store(s.Answers)
	c.refusals.Store(s.Refusals)
	c.asked.Store(s.Asked)
	c.answered.Store(s.Answered)
	c.refused.Store(s.RefusedPeers)
	c.resolverIgnored.Store(s.Ignored + s.Limited)
}
