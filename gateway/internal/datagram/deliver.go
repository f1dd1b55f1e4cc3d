package datagram

import (
	"net/netip"
	"slices"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// received handles a packet that arrived on a port; b is the whole receive buffer.
func (e *engine) received(p *port, wc *verbs.WC, b []byte) {
	if wc.ByteLen < grhLen || int(wc.ByteLen) > len(b) {
		e.count.drop(report.DropMalformed)
		return
	}
	msg := b[grhLen:wc.ByteLen]
	var imm immediate
	piece := wc.Flags&verbs.WCWithImm != 0
	if piece {
		var err error
		if imm, err = parseImmediate(wc.ImmData); err != nil {
			e.count.drop(report.DropMalformed)
			return
		}
		if imm.control != 0 {
			e.control(p, wc.SrcQP, imm.control, b[:grhLen], msg)
			return
		}
	}
	ends, payload, err := parseMessage(msg)
	if err != nil {
		e.count.drop(report.DropMalformed)
		return
	}
	l := p.links[linkKey{addrPair{ends.dst.Addr(), ends.src.Addr()}, wc.SrcQP}]
	if why := p.refuses(l, ends, wc.SrcQP, b[:grhLen]); why != "" {
		e.count.drop(why)
		return
	}
	l.peer.hear(e.now, false)
	at, n := grhLen+ends.headersLen(), len(payload)
	if piece {
		if b, n, err = l.asm.add(e.now, imm, ends, msg); err != nil {
			e.count.drop(report.DropMalformed)
		}
		e.asmDropped(l)
		if b == nil {
			return
		}
		at = headroom
	}
	e.deliver(l, ends, b, at, n)
}

// refuses returns why a datagram is not accepted from its sender, or "" if it is.
func (p *port) refuses(l *link, ends endPair, qpn uint32, grh []byte) report.DatagramDrop {
	if p.shm == nil {
		switch seen := grhEnds(grh); {
		case seen.remote != ends.src.Addr():
			return report.DropWrongSource
		case seen.local != ends.dst.Addr():
			return report.DropWrongTarget
		}
	}
	if l != nil && l.valid {
		return ""
	}
	for k, o := range p.links {
		if l == nil && k.qpn == qpn && o.valid {
			if k.remote == ends.src.Addr() {
				return report.DropWrongTarget
			}
			return report.DropWrongSource
		}
	}
	return report.DropUnproven
}

// deliver passes a peer's datagram, whose payload is b[at:at+n], to the local program as if
// it came from the network.
func (e *engine) deliver(l *link, ends endPair, b []byte, at, n int) {
	if !ends.fits(n) {
		e.count.drop(report.DropMalformed)
		return
	}
	kind := l.port.kind
	e.count.received[kind].Add(1)
	t := ebpf.Tuple{Local: ends.dst, Remote: ends.src}
	f := e.flows.find(t)
	if f == nil {
		if f = e.openIn(l, t); f == nil {
			return
		}
	}
	e.touch(f) // before anything is sent, since sending may end f
	if f.declined != negotiate.ReasonNone && e.now.Sub(f.toldAt) >= nativeEvery {
		f.toldAt = e.now
		e.decline(l, t.Local, f.declined)
	}
	if e.now.Sub(f.checked) >= flowCheck && !e.checkFlow(l, f) {
		e.count.drop(report.DropQueueFull)
		return
	}
	start := putUDP(b, at, n, ends)
	if !e.writeTUN(b[start : at+n]) {
		e.count.drop(report.DropQueueFull)
		return
	}
	f.rx.Add(uint64(n))
	e.count.rxBytes[kind].Add(uint64(n))
	e.count.delivered.Add(1)
}

// openIn makes the flow of a tuple whose first datagram comes from a peer. A datagram that
// the policy does not select is delivered all the same: the peer has sent it, and natively it
// would have arrived.
func (e *engine) openIn(l *link, t ebpf.Tuple) *flow {
	if slices.Contains(e.cfg.OwnPorts, t.Local.Port()) {
		e.count.drop(report.DropWrongTarget)
		return nil
	}
	ifindex, err := e.route(l.addrPair)
	side := report.SideServer
	q := ebpf.Query{Proto: ebpf.ProtoUDP, Inbound: true, Peer: t.Remote.Addr(), Port: t.Local.Port(), Local: t.Local, Remote: t.Remote}
	v := e.steer.Decide(q)
	if v.Action == ebpf.ActionPass && v.Rule == ebpf.NoRule { // perhaps an answer to a client whose flow was forgotten
		q.Port = t.Remote.Port()
		if answer := e.steer.Decide(q); answer.Action != ebpf.ActionPass {
			v, side = answer, report.SideClient
		}
	}
	if err == nil {
		err = e.steer.OpenDatagram(t, ifindex, v.Rule)
	}
	if err != nil {
		e.log.Debug("open datagram tuple", "tuple", t, "error", err)
		e.count.drop(report.DropQueueFull)
		e.shut(l)
		return nil
	}
	f := e.newFlow(l, t, side)
	f.rule = v.Rule
	switch {
	case e.quiet != negotiate.ReasonNone:
		f.declined = e.quiet
	case v.Action == ebpf.ActionPass:
		f.declined = negotiate.Reason(v.Reason)
	}
	return f
}

// shut tells a peer that carried datagrams cannot be delivered to an address, while native
// ones may be.
func (e *engine) shut(l *link) {
	if e.now.Sub(l.refused) >= nativeEvery {
		l.refused = e.now
		e.decline(l, netip.AddrPortFrom(l.local, 0), negotiate.ReasonAddress)
	}
}

// checkFlow opens the tuple again if the programs have forgotten it, which a full table can
// cause, or if the peer is now reached through another device: writes to the app TUN would
// otherwise be dropped silently. A missing route may be temporary; if it is missing for
// several checks, the address has left the host and the flow ends. It reports whether the
// flow continues.
func (e *engine) checkFlow(l *link, f *flow) bool {
	f.checked = e.now
	ifindex, err := e.route(l.addrPair)
	if err != nil {
		if f.lost++; f.lost < lostChecks {
			return true
		}
		e.shut(l)
		e.endFlow(f, report.EndNative, negotiate.ReasonAddress)
		return false
	}
	f.lost = 0
	at, err := e.steer.DatagramIfindex(f.tuple)
	if err == nil && (at == ifindex || f.side == report.SideClient) { // for a client, the programs follow what it sends
		return true
	}
	if err = e.steer.OpenDatagram(f.tuple, ifindex, f.rule); err != nil {
		e.log.Debug("open datagram tuple again", "tuple", f.tuple, "error", err)
	}
	return true
}

// route returns the network device through which a peer is reached, from a cache.
func (e *engine) route(p addrPair) (int, error) {
	r, ok := e.routes[p]
	if !ok || e.now.After(r.until) {
		r.ifindex, r.err = e.steer.RouteDevice(p.local, p.remote)
		r.until = e.now.Add(routeFor)
		if r.err != nil {
			r.until = e.now.Add(routeAgain)
		}
		e.routes[p] = r
	}
	return r.ifindex, r.err
}
