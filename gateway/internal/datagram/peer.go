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
	// maxPeers bounds the peers, maxLinks the links of one peer: each local address and
	// carrier may have one.
	maxPeers = 1024
	maxLinks = 8
	// echoEvery is how long an echo vouches for the path to a peer that is sending.
	echoEvery = time.Second
)

// peer is what is known about another host, by its address.
type peer struct {
	addr  netip.Addr
	links []*link
	// cur is the proved link while the peer is capable; nil: datagrams go natively.
	cur   *link
	flows flowList

	sent, heard time.Time // last datagram to and from the peer, on any link
	echoed      time.Time // the last echo of a full packet
	alive       time.Time // last sign that what is sent arrives
	told        time.Time // last report of traffic to the resolver
	quiet       time.Time // until then the peer wants nothing carried
	native      time.Time // until then the resolver is not asked for it again
}

// hear records a message from the peer. By itself that says nothing about the path to the
// peer, which can fail alone, or for long packets only; so it counts as a sign of life only
// if a full packet was echoed recently, too.
func (p *peer) hear(now time.Time, echo bool) {
	p.heard = now
	if echo {
		p.echoed = now
	}
	if now.Sub(p.echoed) < echoEvery {
		p.alive = now
	}
}

// reach returns a link on which the peer can be probed. It also returns one for a peer to
// which nothing is carried for now, because either side is switched off.
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

// linkFrom returns the link for datagrams from a local address, or nil. What was proved for
// one local address holds for the others that the peer itself was told about.
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

// peerAt returns the entry of a peer, or nil if there is no room.
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

// dropPeer makes room by forgetting an unused peer, preferably one that was merely announced.
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

// forgetPeer removes all links of an unused peer.
func (e *engine) forgetPeer(p *peer) {
	for len(p.links) > 0 {
		e.unlink(p.links[0])
	}
	delete(e.peers, p.addr)
}

// link returns the link by a way to a queue pair of a peer, creating it if needed. trusted:
// the peer itself has announced the queue pair.
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
	if l.valid && !trusted { // an unproven query must not change a link in use
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

// leastLink returns the link to give up first: one from an unproven query before one that the
// peer has used, then the oldest. The link in use is never returned.
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

// unlink removes a link.
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

// capable makes datagrams to the link's peer carried from here on.
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
	for i := 0; i < len(p.links); { // drop links left behind by a gateway that has restarted
		if o := p.links[i]; o.gateway != l.gateway && o.valid {
			e.unlink(o)
			continue
		}
		i++
	}
	e.setPeer(ebpf.DatagramPeer{Addr: p.addr, Capable: true, TTL: ttl})
}

// native makes datagrams to the host go natively for ttl.
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

// portLost handles the end of a port: the device failed, or its shm peer hung up. Datagrams
// to the peers behind it go natively from here on.
func (e *engine) portLost(p *port) {
	if portState(p.at.Swap(uint32(portGone))) == portGone {
		return
	}
	for _, l := range p.links {
		if l.peer.cur == l {
			e.act(e.resolve.Hangup(l.remote, e.now))
		}
		if l.proof != 0 { // no effect if another proof has followed
			e.act(e.resolve.Proved(l.remote, l.proof, false, e.now))
		}
	}
	e.s.Post(func() { e.closePort(p) })
}

// closePort detaches a port and its links from the shard. What may take an adapter long is
// done on a goroutine: until it is done, the port keeps its slots and remains among the
// engine's ports.
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

// portClosed finishes the close of a port. A stopped engine needs no slots back, since it
// sends no more.
func (e *engine) portClosed(p *port, free bool) {
	e.unlessStopped(func(e *engine) {
		delete(e.ports, p)
		if free {
			e.out.reclaim(p)
		}
	})
	close(p.closed)
}
