package datagram

import (
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/negotiate/resolve"
)

// control handles a control message.
func (e *engine) control(p *port, qpn uint32, kind uint8, grh, msg []byte) {
	if p.shm == nil {
		if l := p.links[linkKey{grhEnds(grh), qpn}]; l == nil || !e.controlOf(l, kind, msg) {
			e.count.drop(report.DropUnproven)
		}
		return
	}
	of := func() *link { // shared memory has no source address, and a peer has few links
		for _, l := range p.links {
			if l.qpn == qpn && e.controlOf(l, kind, msg) {
				return l
			}
		}
		return nil
	}()
	switch {
	case of == nil:
		e.count.drop(report.DropUnproven)
	case of.valid: // the queue pair is valid, so it is for all of its addresses
		for _, l := range p.links {
			l.valid = l.valid || l.qpn == qpn
		}
	}
}

// controlOf handles a control message if it belongs to this link, and reports whether it
// does.
func (e *engine) controlOf(l *link, kind uint8, msg []byte) bool {
	switch kind {
	case controlProbe:
		l.answer(msg)
	case controlEcho:
		if !l.onEcho(msg) {
			return false
		}
	case controlNative:
		n, err := parseNativeNotice(msg)
		if err != nil || !l.valid || n.service.Addr() != l.remote {
			return false
		}
		e.notified(l, n)
	default: // from a newer version
		return false
	}
	if l.valid {
		l.peer.hear(e.now, kind == controlEcho && len(msg) == l.mtu)
	}
	return true
}

// quietMost bounds how long a host stays native at its own request; it repeats the request.
const quietMost = time.Minute

// notified handles a peer's request not to be sent carried datagrams.
func (e *engine) notified(l *link, n nativeNotice) {
	r, ttl := negotiate.Reason(n.reason), time.Duration(max(n.seconds, 1))*time.Second
	e.log.Debug("peer wants datagrams natively", "service", n.service, "reason", r, "ttl", ttl)
	p := l.peer
	switch {
	case n.service.Port() != 0:
		e.declined(p, n, ttl)
	case r == negotiate.ReasonNone:
		p.quiet = time.Time{}
		e.again(p)
	case r == negotiate.ReasonDrained: // it is going away
		list := e.resolve.Hangup(p.addr, e.now)
		for i := range list {
			if n, ok := list[i].(resolve.PeerNative); ok { // the resolver assumes silence
				n.Reason = r
				list[i] = n
			}
		}
		e.act(list)
	default:
		ttl = min(ttl, quietMost)
		p.quiet = e.now.Add(ttl)
		e.native(p.addr, r, ttl)
	}
}

// declined keeps a service native. A peer is heeded only about services that have flows;
// otherwise its ports could fill the table shared by all peers.
func (e *engine) declined(p *peer, n nativeNotice, ttl time.Duration) {
	known := false
	for f := p.flows.head; f != nil; {
		next := f.next
		if f.tuple.Remote == n.service {
			if !known {
				known = true
				e.setPeer(ebpf.DatagramPeer{Addr: n.service.Addr(), Port: n.service.Port(), Reason: n.reason, TTL: ttl})
			}
			e.endFlow(f, report.EndNative, negotiate.Reason(n.reason))
		}
		f = next
	}
}

// again resumes use of a peer that is still proven.
func (e *engine) again(p *peer) {
	if err := e.steer.ForgetDatagramPeer(p.addr, 0); err != nil {
		e.log.Warn("tell programs about datagram peer", "peer", p.addr, "error", err)
	}
	if s, _ := e.resolve.State(p.addr); s == resolve.PeerStateProven && len(p.links) > 0 {
		e.act(e.resolve.Want(p.links[0].local, p.addr, false, e.now))
	}
}

// decline asks a peer not to send carried datagrams to a service; port 0 means this whole
// host. It reports whether the message was sent.
func (e *engine) decline(l *link, service netip.AddrPort, r negotiate.Reason) bool {
	if e.quiet != negotiate.ReasonNone {
		service = netip.AddrPortFrom(service.Addr(), 0)
	}
	var b [64]byte
	seconds := min(e.suspension(r)/time.Second, 65535)
	return l.control(controlNative, nativeNotice{service: service, reason: uint8(r), seconds: uint16(seconds)}.append(b[:0]), 0)
}

// quiesce makes everything native. A drain is permanent.
func (e *engine) quiesce(r negotiate.Reason) {
	if e.quiet == negotiate.ReasonDrained {
		return
	}
	e.quiet = r
	for _, p := range e.peers {
		e.tell(p, r)
		e.native(p.addr, r, e.suspension(r))
	}
	e.sendNotices()
	e.s.Flush()
}

// resume undoes quiesce.
func (e *engine) resume() {
	if e.quiet == negotiate.ReasonDrained || e.quiet == negotiate.ReasonNone {
		return
	}
	for _, p := range e.peers {
		e.tell(p, negotiate.ReasonNone)
	}
	e.quiet = negotiate.ReasonNone
	e.sendNotices()
	for _, p := range e.peers {
		e.again(p)
	}
}

// tell queues a notice for a peer, on all of its links, saying why nothing is carried to this
// host; ReasonNone says that datagrams are carried again.
func (e *engine) tell(p *peer, r negotiate.Reason) {
	for _, l := range p.links {
		if l.valid {
			e.notices[l] = r
		}
	}
}

// sendNotices sends queued notices as far as there is room. Later turns send the rest, since
// each completion makes room.
func (e *engine) sendNotices() {
	for l, r := range e.notices {
		if !l.port.is(portActive) || l.barren() && l.ah == nil || e.decline(l, netip.AddrPortFrom(l.local, 0), r) {
			delete(e.notices, l)
		}
	}
	if len(e.notices) == 0 && e.told != nil {
		close(e.told)
		e.told = nil
	}
}
