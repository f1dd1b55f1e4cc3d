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
	// trafficEvery is how often the resolver hears of what moves.
	trafficEvery = 100 * time.Millisecond
	// waysFor is how long a port for a pair of addresses is taken for granted.
	waysFor = time.Minute
	// waysAgain is how long it is taken for granted that there is none.
	waysAgain = time.Second
	// waysMost bounds what is known of pairs.
	waysMost = 2 * maxPeers
)

// newResolver makes the state machine; it belongs to the shard.
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

// wayOf returns the way by which a queue pair of the peer is reached, nil if it
// is not there, or not any more: that of its kind, or where the ends are mixed the one
// that allows it. With one peer memory can be shared twice, offered by each side.
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

// offers tells the resolver what there is for a pair of addresses, one way of
// each kind: that of the query that is being answered, where it names one. A query of
// our own waits for what is not known.
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

// admit says whether datagrams of a peer are taken at all.
func (e *engine) admit(local, peer netip.Addr) negotiate.Reason {
	switch {
	case e.quiet != negotiate.ReasonNone:
		return e.quiet
	case e.gateway.Off():
		return negotiate.ReasonOff
	}
	if _, err := e.route(addrPair{local, peer}); err != nil { // what it sent could not be written to A
		return negotiate.ReasonAddress
	}
	return negotiate.ReasonNone
}

// fresh reports whether the ways of a pair need no look.
func (e *engine) fresh(pair addrPair) bool {
	have, ok := e.ways[pair]
	long := waysFor
	if len(have.list) == 0 {
		long = waysAgain
	}
	return ok && e.now.Sub(have.at) < long && !slices.ContainsFunc(have.list, way.gone)
}

// look has the keeper find the ways of a pair, and then calls then on the shard. q is the
// query of the peer, nil if we are to ask.
func (e *engine) look(pair addrPair, q *resolve.Resolve, then func()) {
	if !e.keeper.ways(pair, q, func(list []way) {
		if e.stopped {
			return
		}
		if _, known := e.ways[pair]; !known && len(e.ways) >= waysMost {
			e.forgetWays()
		}
		for _, w := range e.ways[pair].list { // what has been offered before stays good
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

// forgetWays forgets the ways of one pair: the oldest ones of a peer that the resolver has
// no use for, or the oldest.
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

// message takes a datagram of the datagram port.
func (e *engine) message(local, from netip.AddrPort, b []byte) {
	e.act(e.resolve.Receive(local, from, b, e.now))
}

// answer answers a query of a peer, once the ways are known.
func (e *engine) answer(a resolve.AnswerPeer) {
	e.look(addrPair{a.Local.Addr(), a.From.Addr()}, &a.Query, func() {
		e.query = &a.Query
		e.act(e.resolve.Answer(a, e.now))
		e.query = nil
	})
}

// want: a local program sends to a peer that is not capable.
func (e *engine) want(pair addrPair) {
	if e.quiet != negotiate.ReasonNone {
		return
	}
	e.act(e.resolve.Want(pair.local, pair.remote, e.gateway.NamesPeer(pair.remote), e.now))
}

// news: the gateway of a peer has a datagram port.
func (e *engine) news(local netip.Addr, at netip.AddrPort, gateway [16]byte) {
	e.act(e.resolve.News(local, at, gateway, e.now))
}

// act does what the resolver wants.
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
					l.probe(l.mtu) // a path that has become narrower is no path any more
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

// expect makes the links that a peer may send by once it has our answer.
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

// peerCapable: the resolver says by which link datagrams go. If that link is gone, the
// peer is asked again; a link that carried nothing can go without a word.
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

// tickResolver tells the resolver what has moved and does what is due.
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

// queryCounts adds what the resolver has counted.
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
