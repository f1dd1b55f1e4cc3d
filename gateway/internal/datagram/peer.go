package datagram

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// maxPeers bounds the peers, maxLinks the links of one: each of
	// our addresses and carriers may have one.
	maxPeers = 1024
	maxLinks = 8
	// echoEvery is how long an echo vouches for the way to a peer that sends.
	echoEvery = time.Second
)

// peer is what is known of another host, by its address.
type peer struct {
	addr  netip.Addr
	links []*link
	// cur is the link that was proved, while the peer is capable; nil: datagrams
	// go natively.
	cur   *link
	flows flowList

	sent, heard time.Time // of this peer, on any link
	echoed      time.Time // the last echo of a full packet
	alive       time.Time // the last sign that what is sent arrives
	told        time.Time // that something moved, to the resolver
	quiet       time.Time // until then it wants nothing carried
	native      time.Time // until then it is not asked for again
}

// hear notes what came from the peer. It says nothing about the way to the peer,
// which can be lost alone, or for long packets alone: an echo of a full packet has
// to have come lately, too.
func (p *peer) hear(now time.Time, echo bool) {
	p.heard = now
	if echo {
		p.echoed = now
	}
	if now.Sub(p.echoed) < echoEvery {
		p.alive = now
	}
}

// reach returns a link by which the peer can be asked whether it lives: also of
// one to which nothing is carried for now, because it or we are switched off.
func (p *peer) reach() *link {
	if p.cur != nil {
		return p.cur
	}
	for _, l := range slices.Backward(p.links) {
		if l.valid && !l.port.is(portGone) {
			return l
		}
	}
	return nil
}

// linkFrom returns the link by which datagrams from a local address go, or nil.
// What is proved for one of our addresses holds for those that the peer has been
// told of by itself.
func (p *peer) linkFrom(local netip.Addr) *link {
	if p.cur == nil || p.cur.local == local {
		return p.cur
	}
	for _, l := range p.links {
		if l.local == local && l.valid && l.port == p.cur.port && l.qpn == p.cur.qpn {
			return l
		}
	}
	return nil
}

// peerAt returns the entry of a peer, nil when there is no room.
func (e *engine) peerAt(a netip.Addr) *peer {
	p := e.peers[a]
	if p != nil {
		return p
	}
	if len(e.peers) >= maxPeers && !e.dropPeer() {
		return nil
	}
	p = &peer{addr: a}
	e.peers[a] = p
	return p
}

// dropPeer makes room: of the peers that are not used, one that was only made
// known goes first.
func (e *engine) dropPeer() bool {
	var worst *peer
	for _, p := range e.peers {
		if p.cur == nil && p.flows.n == 0 && (worst == nil || p.heard.Before(worst.heard)) {
			worst = p
		}
	}
	if worst == nil {
		return false
	}
	e.forgetPeer(worst)
	return true
}

// forgetPeer ends all links of a peer that is not used.
func (e *engine) forgetPeer(p *peer) {
	for len(p.links) > 0 {
		e.unlink(p.links[0])
	}
	delete(e.peers, p.addr)
}

// link returns the link by a way to a queue pair of a peer, and makes it if it is
// not there. trusted: the peer itself has told us of it.
func (e *engine) link(pair addrPair, w *way, o *resolve.UDOffer, gateway [16]byte, trusted bool) (*link, error) {
	if w.port.shm == nil && verbs.GID(o.GID).Addr() != pair.remote {
		return nil, fmt.Errorf("queue pair at another address: %w", errNotHere)
	}
	if err := w.port.start(); err != nil {
		return nil, err
	}
	key := linkKey{pair, o.QPN}
	l := w.port.links[key]
	if l == nil {
		var err error
		if l, err = e.newLink(key, w, o); err != nil {
			return nil, err
		}
	}
	if l.valid && !trusted { // an unproven query does not change what is in use
		if o.QKey != l.qkey {
			l.newKey = o.QKey
		}
		return l, nil
	}
	if at := w.address(o); at != l.at {
		l.forgetHandle()
		l.at = at
	}
	l.qkey, l.newKey, l.gateway, l.kind = o.QKey, 0, gateway, o.Kind
	l.mtu = min(w.port.mtu, int(o.MTU))
	l.valid = l.valid || trusted
	l.since = e.now
	return l, nil
}

func (e *engine) newLink(k linkKey, w *way, o *resolve.UDOffer) (*link, error) {
	p := e.peerAt(k.remote)
	if p == nil {
		return nil, fmt.Errorf("datagram peers: %w", verbs.ErrNoMemory)
	}
	for len(p.links) >= maxLinks {
		e.unlink(p.leastLink())
	}
	l := &link{
		addrPair: k.addrPair, port: w.port, peer: p, kind: o.Kind, qpn: k.qpn, at: w.address(o), cookie: rand.Uint64(),
		ids: pieceIDs{next: uint16(rand.Uint32())}, asm: reassembly{pool: &e.asm},
	}
	p.links = append(p.links, l)
	w.port.links[k] = l
	return l, nil
}

// leastLink is the link to give up first: one of an unproven query before one that the
// peer has used, the oldest before others. The link in use is never given up.
func (p *peer) leastLink() *link {
	var least *link
	for _, l := range p.links {
		switch {
		case l == p.cur:
		case least == nil, least.valid && !l.valid, least.valid == l.valid && l.since.Before(least.since):
			least = l
		}
	}
	return least
}

// unlink forgets a link.
func (e *engine) unlink(l *link) {
	p := l.peer
	for i, o := range p.links {
		if o == l {
			p.links = append(p.links[:i], p.links[i+1:]...)
			break
		}
	}
	delete(l.port.links, l.key())
	delete(e.notices, l)
	l.asm.clear()
	e.asmDropped(l)
	l.forgetHandle()
	if p.cur == l {
		p.cur = nil
	}
}

// capable: datagrams to the peer are carried from here on.
func (e *engine) capable(l *link, ttl time.Duration) {
	p := l.peer
	if e.quiet != negotiate.ReasonNone || e.now.Before(p.quiet) {
		return
	}
	if p.cur != l {
		e.log.Info("datagrams are carried", "peer", p.addr, "local", l.local, "carrier", l.port.kind)
		e.gateway.Proven(p.addr, l.carrier())
		p.sent, p.heard, p.echoed, p.alive = time.Time{}, e.now, e.now, e.now
	}
	p.cur = l
	for i := 0; i < len(p.links); { // a gateway that has been started again leaves old ones behind
		if o := p.links[i]; o.gateway != l.gateway && o.valid {
			e.unlink(o)
			continue
		}
		i++
	}
	e.setPeer(ebpf.DatagramPeer{Addr: p.addr, Capable: true, TTL: ttl})
}

// native: datagrams to the host go natively for a while.
func (e *engine) native(a netip.Addr, r negotiate.Reason, ttl time.Duration) {
	e.setPeer(ebpf.DatagramPeer{Addr: a, Reason: uint8(r), TTL: ttl})
	if r == negotiate.ReasonAuthFailed {
		e.gateway.NoCommonKey(a)
	}
	p := e.peers[a]
	if p == nil {
		return
	}
	if p.flows.n > 0 {
		e.log.Warn("datagrams are native", "peer", a, "reason", r)
	}
	p.cur, p.native = nil, e.now.Add(ttl)
	for p.flows.n > 0 {
		e.endFlow(p.flows.head, report.EndNative, r)
	}
}

func (e *engine) setPeer(d ebpf.DatagramPeer) {
	if err := e.steer.SetDatagramPeer(d); err != nil {
		e.log.Warn("tell programs about datagram peer", "peer", d.Addr, "error", err)
	}
}

// portLost is the end of a port: the device failed, or its shm peer hung up.
// Datagrams to those after it go natively from here on.
func (e *engine) portLost(p *port) {
	if portState(p.at.Swap(uint32(portGone))) == portGone {
		return
	}
	for _, l := range p.links {
		if l.peer.cur == l {
			e.act(e.resolve.Hangup(l.remote, e.now))
		}
		if l.proof != 0 { // of no effect if another proof has followed
			e.act(e.resolve.Proved(l.remote, l.proof, false, e.now))
		}
	}
	e.s.Post(func() { e.closePort(p) })
}

// closePort takes a port and its links from the shard. What an adapter may take its time for is done beside that:
// until then the port has its slots, and is among those of the engine.
func (e *engine) closePort(p *port) {
	if p.ending {
		return
	}
	p.ending = true
	p.at.Store(uint32(portGone))
	for _, l := range p.links {
		e.unlink(l)
	}
	end := p.part()
	e.closing.Go(func() {
		free, err := p.close(end)
		if err != nil {
			e.log.Warn("close datagram queue pair", "carrier", p.kind, "error", err)
		}
		e.s.Post(func() { e.portClosed(p, free) })
	})
}

// portClosed is the end of a port. An engine that has stopped sends no more.
func (e *engine) portClosed(p *port, free bool) {
	e.unlessStopped(func(e *engine) {
		delete(e.ports, p)
		if free {
			e.out.reclaim(p)
		}
	})
	close(p.closed)
}
