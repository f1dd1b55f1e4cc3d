package gateway

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// dgramPeersMost bounds the peers, dgramLinksMost the links of one: each of
	// our addresses and carriers may have one.
	dgramPeersMost = 1024
	dgramLinksMost = 8
	// dgramEchoEvery is how long an echo vouches for the way to a peer that sends.
	dgramEchoEvery = time.Second
)

// dgramPeer is what is known of another host, by its address.
type dgramPeer struct {
	addr  netip.Addr
	links []*dgramLink
	// cur is the link that was proved, while the peer is capable; nil: datagrams
	// go natively.
	cur   *dgramLink
	flows dgramList

	sent, heard time.Time // of this peer, on any link
	echoed      time.Time // the last echo of a full packet
	alive       time.Time // the last sign that what is sent arrives
	told        time.Time // that something moved, to the resolver
	quiet       time.Time // until then it wants nothing carried
}

// hear notes what came from the peer. It says nothing about the way to the peer,
// which can be lost alone, or for long packets alone: an echo of a full packet has
// to have come lately, too.
func (p *dgramPeer) hear(now time.Time, echo bool) {
	p.heard = now
	if echo {
		p.echoed = now
	}
	if now.Sub(p.echoed) < dgramEchoEvery {
		p.alive = now
	}
}

// reach returns a link by which the peer can be asked whether it lives: also of
// one to which nothing is carried for now, because it or we are switched off.
func (p *dgramPeer) reach() *dgramLink {
	if p.cur != nil {
		return p.cur
	}
	for _, l := range slices.Backward(p.links) {
		if l.valid && !l.port.failed {
			return l
		}
	}
	return nil
}

// linkFrom returns the link by which datagrams from a local address go, or nil.
// What is proved for one of our addresses holds for those that the peer has been
// told of by itself.
func (p *dgramPeer) linkFrom(local netip.Addr) *dgramLink {
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
func (e *dgramEngine) peerAt(a netip.Addr) *dgramPeer {
	p := e.peers[a]
	if p != nil {
		return p
	}
	if len(e.peers) >= dgramPeersMost && !e.dropPeer() {
		return nil
	}
	p = &dgramPeer{addr: a}
	e.peers[a] = p
	return p
}

// dropPeer makes room: of the peers that are not used, one that was only made
// known goes first.
func (e *dgramEngine) dropPeer() bool {
	var worst *dgramPeer
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
func (e *dgramEngine) forgetPeer(p *dgramPeer) {
	for len(p.links) > 0 {
		e.unlink(p.links[0])
	}
	delete(e.peers, p.addr)
}

// link returns the link by a way to a queue pair of a peer, and makes it if it is
// not there. trusted: the peer itself has told us of it.
func (e *dgramEngine) link(pair dgramPair, w *dgramWay, o *resolve.UDOffer, gateway [16]byte, trusted bool) (*dgramLink, error) {
	if w.port.shm == nil && verbs.GID(o.GID).Addr() != pair.remote {
		return nil, fmt.Errorf("queue pair at another address: %w", carrier.ErrNotHere)
	}
	if err := w.port.start(); err != nil {
		return nil, err
	}
	key := dgramLinkKey{pair, o.QPN}
	l := w.port.links[key]
	if l == nil {
		var err error
		if l, err = e.newLink(key, w, o); err != nil {
			return nil, err
		}
	}
	if l.valid && !trusted { // what is in use is not changed by what anybody may have sent
		if o.QKey != l.qkey {
			l.newKey = o.QKey
		}
		return l, nil
	}
	if o.UDPPort != l.udpPort {
		ah, err := w.port.pd.CreateAH(w.address(o))
		if err != nil {
			return nil, err
		}
		_ = l.ah.Close()
		l.ah, l.udpPort = ah, o.UDPPort
	}
	l.qkey, l.newKey, l.gateway = o.QKey, 0, gateway
	l.mtu = min(w.port.mtu, int(o.MTU))
	l.valid = l.valid || trusted
	l.since = e.now
	return l, nil
}

func (e *dgramEngine) newLink(k dgramLinkKey, w *dgramWay, o *resolve.UDOffer) (*dgramLink, error) {
	p := e.peerAt(k.remote)
	if p == nil {
		return nil, fmt.Errorf("datagram peers: %w", verbs.ErrNoMemory)
	}
	ah, err := w.port.pd.CreateAH(w.address(o))
	if err != nil {
		return nil, err
	}
	for len(p.links) >= dgramLinksMost {
		e.unlink(p.leastLink())
	}
	l := &dgramLink{
		dgramPair: k.dgramPair, port: w.port, peer: p, qpn: k.qpn, ah: ah, udpPort: o.UDPPort, cookie: rand.Uint64(),
		ids: dgramIDs{next: uint16(rand.Uint32())}, asm: reassembly{pool: &e.asm},
	}
	p.links = append(p.links, l)
	w.port.links[k] = l
	return l, nil
}

// leastLink is the link that is missed least; one that anybody may have asked for
// goes before one the peer has used.
func (p *dgramPeer) leastLink() *dgramLink {
	var least *dgramLink
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
func (e *dgramEngine) unlink(l *dgramLink) {
	p := l.peer
	for i, o := range p.links {
		if o == l {
			p.links = append(p.links[:i], p.links[i+1:]...)
			break
		}
	}
	delete(l.port.links, l.key())
	l.dead = true
	l.asm.clear()
	e.asmDropped(l)
	_ = l.ah.Close()
	if p.cur == l {
		p.cur = nil
	}
}

// capable: datagrams to the peer are carried from here on.
func (e *dgramEngine) capable(l *dgramLink, ttl time.Duration) {
	p := l.peer
	if e.quiet != negotiate.ReasonNone || e.now.Before(p.quiet) {
		return
	}
	if p.cur != l {
		e.log.Info("datagrams are carried", "peer", p.addr, "local", l.local, "carrier", l.port.kind)
		e.g.peers.Proven(p.addr, l.carrier())
		p.sent, p.heard, p.echoed, p.alive = time.Time{}, e.now, e.now, e.now
	}
	p.cur = l
	for i := 0; i < len(p.links); { // a gateway that has been started anew leaves old ones behind
		if o := p.links[i]; o.gateway != l.gateway && o.valid {
			e.unlink(o)
			continue
		}
		i++
	}
	e.setPeer(ebpf.DatagramPeer{Addr: p.addr, Capable: true, TTL: ttl})
}

// native: datagrams to the host go natively for a while.
func (e *dgramEngine) native(a netip.Addr, r negotiate.Reason, ttl time.Duration) {
	e.setPeer(ebpf.DatagramPeer{Addr: a, Reason: uint8(r), TTL: ttl})
	if r == negotiate.ReasonAuthFailed {
		e.g.stranger(a, config.SideClient)
	}
	p := e.peers[a]
	if p == nil {
		return
	}
	if p.flows.n > 0 {
		e.log.Warn("datagrams are native", "peer", a, "reason", r)
	}
	p.cur = nil
	for p.flows.n > 0 {
		e.endFlow(p.flows.head, admin.EndNative, r)
	}
}

func (e *dgramEngine) setPeer(d ebpf.DatagramPeer) {
	if err := e.steer.SetDatagramPeer(d); err != nil {
		e.log.Warn("tell programs about datagram peer", "peer", d.Addr, "error", err)
	}
}

// portLost is the end of a port: the device failed, or its shm peer hung up.
// Datagrams to those behind it go natively from here on.
func (e *dgramEngine) portLost(p *dgramPort) {
	p.failed = true
	if p.gone.Swap(true) {
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

// closePort forgets a port and its links.
func (e *dgramEngine) closePort(p *dgramPort) {
	delete(e.ports, p)
	for _, l := range p.links {
		e.unlink(l)
	}
	if err := p.close(); err != nil {
		e.log.Warn("close datagram queue pair", "carrier", p.kind, "error", err)
	}
}
