package netstack

import (
	"sync/atomic"

	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/netstack/link"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/packet"
)

// shim is the link endpoint between gVisor and the wire. It does per packet everything that distinguishes this stack
// from a plain gVisor stack, without I/O of its own.
type shim struct {
	nested.Endpoint
	s    *Stack
	open atomic.Bool // inbound packets are accepted
}

var _ stack.LinkEndpoint = (*shim)(nil)

func newShim(s *Stack, lower stack.LinkEndpoint) *shim {
	m := &shim{s: s}
	m.Init(lower, m)
	return m
}

// Capabilities adds receive checksum offload: the shim verifies what the link did not, because gVisor could not after
// the headers have been translated.
func (m *shim) Capabilities() stack.LinkEndpointCapabilities {
	return m.Endpoint.Capabilities() | stack.CapabilityRXChecksumOffload
}

// WritePackets passes on what gVisor sends, rewritten if necessary.
func (m *shim) WritePackets(l stack.PacketBufferList) (int, tcpip.Error) {
	pkts := l.AsSlice()
	for i, p := range pkts {
		if repl, keep := m.outbound(p); !keep {
			return m.writeChanged(pkts, i, repl)
		}
	}
	return m.Endpoint.WritePackets(l)
}

// writeChanged writes pkts: the first n pass unchanged, and the next one is replaced by repl (by nothing if that is
// empty).
func (m *shim) writeChanged(pkts []*stack.PacketBuffer, n int, repl []*stack.PacketBuffer) (int, tcpip.Error) {
	var out stack.PacketBufferList
	var made []*stack.PacketBuffer
	defer func() {
		for _, p := range made {
			p.DecRef()
		}
	}()
	for i, p := range pkts {
		keep := i < n
		if i > n {
			repl, keep = m.outbound(p)
		}
		if keep {
			out.PushBack(p)
			continue
		}
		made = append(made, repl...)
		for _, q := range repl {
			out.PushBack(q)
		}
	}
	if out.Len() > 0 {
		if _, err := m.Endpoint.WritePackets(out); err != nil {
			return 0, err
		}
	}
	return len(pkts), nil
}

// send writes a packet that the shim has made.
func (m *shim) send(p *stack.PacketBuffer) {
	defer p.DecRef()
	var l stack.PacketBufferList
	l.PushBack(p)
	_, _ = m.Endpoint.WritePackets(l) // TCP copes with a lost packet
}

// outbound decides about one packet of gVisor: either keep it, possibly changed in place, or send repl instead.
func (m *shim) outbound(p *stack.PacketBuffer) (repl []*stack.PacketBuffer, keep bool) {
	t := p.TransportHeader().Slice()
	if p.TransportProtocolNumber != header.TCPProtocolNumber || len(t) < packet.TCPMinLen {
		return nil, false
	}
	ip := p.NetworkHeader().Slice()
	f := m.s.flows.get(outboundKey(ip, t))
	if f == nil || !f.alive() {
		return nil, false
	}
	g := f.grown.Load()
	if g == nil { // from the previous connection on the tuple
		return nil, false
	}
	sent := f.sent.Load()
	if f.server {
		keep = m.outServer(f, g, p, t)
	} else {
		repl, keep = m.outClient(f, g, p, ip, t)
	}
	repl, keep = m.fit(f, &g.fitting, p, ip, t, sent, repl, keep)
	switch {
	case keep:
		return nil, !m.held(f, g, p, t)
	case len(repl) == 1 && m.held(f, g, repl[0], repl[0].TransportHeader().Slice()):
		repl[0].DecRef()
		return nil, false
	}
	return repl, false
}

// held holds an acknowledgement back if another segment can carry it.
func (m *shim) held(f *flow, g *grown, p *stack.PacketBuffer, t packet.TCP) bool {
	held, fresh := g.acks.hold(p, t, f.quick.Load())
	if fresh {
		m.s.acks.add(f)
	}
	return held
}

// outServer swallows gVisor's own SYN and translates all other segments.
func (m *shim) outServer(f *flow, g *grown, p *stack.PacketBuffer, t packet.TCP) (keep bool) {
	if t.Flags()&packet.FlagSYN != 0 {
		g.numbers.Begin(t, g.origin, f.scale())
		return false
	}
	if f.refuses(t) || !g.numbers.Ready() {
		return false
	}
	m.translate(f, g, p, t)
	return true
}

// translate rewrites a segment of gVisor for the wire.
func (m *shim) translate(f *flow, g *grown, p *stack.PacketBuffer, t packet.TCP) {
	g.numbers.Out(t, !link.Offloaded(p))
	g.numbers.Sent(sequenceEnd(p, t))
	f.noteSent(sequenceEnd(p, t))
	m.told(f, g, t)
}

// outClient swallows gVisor's own SYN and translates all other segments.
func (m *shim) outClient(f *flow, g *grown, p *stack.PacketBuffer, ip []byte, t packet.TCP) ([]*stack.PacketBuffer, bool) {
	a := f.adopt
	if t.Flags()&packet.FlagSYN != 0 {
		g.numbers.Begin(t, g.origin, f.scale())
		return nil, false
	}
	if !g.numbers.Ready() {
		return nil, false
	}
	m.translate(f, g, p, t)
	if t.Seq() != f.isn+1 || t.Flags()&packet.FlagRST != 0 || a.confirmed.Load() {
		return nil, true
	}
	return confirmSegment(f, p, ip, t)
}

// told records what a segment of gVisor acknowledges.
func (m *shim) told(f *flow, g *grown, t packet.TCP) {
	if t.Flags()&packet.FlagACK != 0 {
		f.awaited.Store(t.Ack())
		g.ahead.Acked(&m.s.reorder, t.Ack(), selective(t))
	}
}

// DeliverNetworkPacket passes on an inbound packet if it is for a live flow.
func (m *shim) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	if !m.open.Load() {
		return
	}
	size := pkt.Data().Size()
	b, _ := pkt.Data().PullUp(min(size, maxHeaders))
	p, ok := parseIP(b, size)
	if !ok {
		m.s.count.malformed.Add(1)
		return
	}
	if !p.HeaderSumOK() {
		m.s.count.checksumErrors.Add(1)
		return
	}
	if p.Total < size { // Ethernet padding: tcx runs before the kernel trims it
		pkt.Data().CapLength(p.Total)
	}
	switch p.Proto {
	case packet.ProtoTCP:
		m.inTCP(p, pkt)
	case packet.ProtoICMP, packet.ProtoICMPv6:
		m.inICMP(p, pkt)
	default:
		m.s.count.malformed.Add(1)
	}
}

// up passes pkt to gVisor.
func (m *shim) up(p packet.IP, pkt *stack.PacketBuffer) {
	m.Endpoint.DeliverNetworkPacket(link.Protocol(p.Header), pkt)
}

// inTCP dispatches a segment.
func (m *shim) inTCP(p packet.IP, pkt *stack.PacketBuffer) {
	t, err := p.TCP()
	flags := byte(0)
	if err == nil {
		flags = t.Flags()
	}
	if err != nil || flags&packet.FlagSYN != 0 && flags&(packet.FlagRST|packet.FlagFIN) != 0 {
		m.s.count.malformed.Add(1)
		return
	}
	if !pkt.RXChecksumValidated && !sumOK(p, pkt) {
		m.s.count.checksumErrors.Add(1)
		return
	}
	k := inboundKey(p.Header, t)
	f := m.s.flows.get(k)
	switch {
	case flags&(packet.FlagSYN|packet.FlagACK) == packet.FlagSYN:
		m.inSYN(k, f, p, t, pkt)
	case f == nil && flags&packet.FlagSYN != 0:
		m.inSYNACK(k, pkt)
	case mayProve(f, t) && m.s.proved(k, f, p, t, pkt):
	case f == nil:
		m.s.count.unknown.Add(1)
	case !f.alive():
		m.inLate(f, k, p, t, pkt)
	case f.server:
		m.inServer(f, p, t, pkt)
	case flags&packet.FlagSYN != 0 && t.Ack() != f.isn+1:
		m.inSYNACK(k, pkt) // of a newer connection: the owner has not yet ended this one
	default:
		m.inClient(f, p, t, pkt)
	}
}

// inClient passes a segment to an adopted flow.
func (m *shim) inClient(f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	a := f.adopt
	m.replacedPeer(f, p, t, pkt)
	if !f.possible(t) {
		m.s.count.impossible.Add(1)
		return
	}
	if t.Flags()&packet.FlagACK != 0 {
		ack := t.Ack()
		m.s.heard(f, ack)
		f.acked(m.s, ack)
		if packet.After(ack, f.isn+1) && !packet.After(ack, f.sent.Load()) {
			a.confirmed.Store(true)
		}
	}
	m.to(f, p, t, pkt)
}

// to passes a segment to whatever moves the bytes of f.
func (m *shim) to(f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	c := f.conn.Load()
	switch {
	case c == nil: // the flow has just ended
	case c.takes(p, t, pkt):
	default:
		m.translated(f, p, t, pkt)
	}
}

// translated passes a segment to gVisor, in gVisor's numbers, if there is room for what gVisor would have to keep.
func (m *shim) translated(f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	g, n := f.grown.Load(), uint32(p.Total-len(p.Header)-len(t))
	m.refuseOld(f, &g.stamps, t, n, pkt)
	seg := segment.Arrived{Seq: t.Seq(), End: t.Seq() + n, Cost: link.Held(pkt)}
	if n > 0 && !g.ahead.Take(&m.s.reorder, seg, f.awaited.Load(), f.quick.Load()) {
		m.s.count.reorderDropped.Add(1)
		return
	}
	if g.numbers.Ready() {
		g.numbers.In(t)
	}
	m.up(p, pkt)
}

// refuseOld changes an old duplicate with n bytes, which gVisor would accept, into a segment of bytes that have already
// arrived. gVisor then drops it and acknowledges.
func (m *shim) refuseOld(f *flow, stamps *segment.PAWS, t packet.TCP, n uint32, pkt *stack.PacketBuffer) {
	o := packet.ParseTCPOptions(t.Options())
	if !o.TS || t.Flags()&(packet.FlagSYN|packet.FlagRST) != 0 {
		return
	}
	s := segment.Stamped{Seq: t.Seq(), End: t.Seq() + n, Acked: f.awaited.Load(), Stamp: o.TSVal, Now: sinceStart(m.s.clock)}
	if !stamps.Takes(s) {
		m.s.count.oldStamps.Add(1)
		t.SetFlags(t.Flags() &^ packet.FlagFIN)
		t.SetSeq(s.Acked - n - 1)
		pkt.RXChecksumValidated = true
	}
}

// resume passes a segment to gVisor that has waited for it.
func (m *shim) resume(f *flow, pkt *stack.PacketBuffer) {
	b, _ := pkt.Data().PullUp(min(pkt.Data().Size(), maxHeaders))
	if p, ok := parseIP(b, pkt.Data().Size()); ok {
		if t, err := p.TCP(); err == nil {
			m.translated(f, p, t, pkt)
		}
	}
}

// replacedPeer turns the answer of a host that has taken the peer's place into a reset.
func (m *shim) replacedPeer(f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	const flags = packet.FlagSYN | packet.FlagACK | packet.FlagRST
	if t.Flags()&flags != packet.FlagACK {
		return
	}
	if f.plausible(t.Ack()) {
		f.strange.Heard()
		return
	}
	if t.Flags()&packet.FlagFIN != 0 || p.Total > len(p.Header)+len(t) {
		return
	}
	gone, ask := f.strange.Strange(sinceStart(m.s.clock), askFor)
	switch {
	case gone:
		m.s.count.strangers.Add(1)
		makeReset(t, f.awaited.Load())
		pkt.RXChecksumValidated = true
	case ask:
		m.s.askAbout(f)
	}
}

// inServer passes a segment to an accepted flow, and looks for the confirm option.
func (m *shim) inServer(f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	m.replacedPeer(f, p, t, pkt)
	if !f.possible(t) {
		m.s.count.impossible.Add(1)
		return
	}
	if t.Flags()&(packet.FlagRST|packet.FlagACK) == packet.FlagACK {
		m.s.heard(f, t.Ack())
		f.acked(m.s, t.Ack())
		f.noteConfirm(t)
	}
	m.to(f, p, t, pkt)
}

// inSYN decides about a SYN without ACK.
func (m *shim) inSYN(k tupleKey, f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	o := packet.ParseTCPOptions(t.Options())
	if f != nil && f.inTimeWait() { // RFC 9293 3.6.1: a SYN may reopen the connection
		f.forget()
	}
	if f != nil && f.alive() {
		if !f.server || f.carrying.Load() || f.isn != t.Seq() {
			m.challenge(f, p, t, pkt) // RFC 5961 4: any host may have sent it
			return
		}
		if o.Option.Role == packet.RoleOffer && f.nonce == o.Option.Nonce {
			return // a late copy of the SYN that was answered
		}
	}
	m.newSYN(k, t, o, rawBytes(pkt))
}

// newSYN reports a SYN that does not belong to a live flow.
func (m *shim) newSYN(k tupleKey, t packet.TCP, o packet.TCPOptions, raw []byte) {
	syn := SYN{Tuple: k.tuple(), ISN: t.Seq(), Offer: o.Option.Role == packet.RoleOffer, Nonce: o.Option.Nonce, Raw: raw}
	if !syn.Offer {
		syn.Nonce = 0
		m.s.cfg.Handler.BareSYN(syn)
		return
	}
	m.s.cfg.Handler.OfferedSYN(syn)
}

// challenge passes a SYN to an endpoint, which answers with an ACK. It keeps the SYN for a while, because an endpoint
// that was about to end may not have answered.
func (m *shim) challenge(f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	f.challenged.Store(&challenged{isn: t.Seq(), raw: rawBytes(pkt), at: m.s.clock.NowMonotonic()})
	m.to(f, p, t, pkt)
}

// again handles a SYN once more that met the flow f when f was about to end. A client that resets a connection may
// begin the next one on the tuple before the owner has ended the first.
func (m *shim) again(f *flow, raw []byte) {
	p, t, ok := parseTCP(raw)
	if !ok || !m.s.hold() {
		return
	}
	defer m.s.release()
	k := inboundKey(p.Header, t)
	if m.s.flows.get(k) != f {
		return // the tuple belongs to another connection by now
	}
	m.newSYN(k, t, packet.ParseTCPOptions(t.Options()), raw)
}

// inSYNACK reports a SYN-ACK of a tuple that the stack does not know yet.
func (m *shim) inSYNACK(k tupleKey, pkt *stack.PacketBuffer) {
	m.s.cfg.Handler.SYNACK(SYNACK{Tuple: k.tuple(), Raw: rawBytes(pkt)})
}

// inLate handles what arrives for an ended flow (docs/PROTOCOL.md "Teardown"). It answers a challenge ACK with an exact
// reset. If the flow was reset, it answers retransmitted data in the same way, because the first reset may have been
// lost. It reports a SYN-ACK of a newer connection to the owner, and drops the rest.
func (m *shim) inLate(f *flow, k tupleKey, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	flags, payload := t.Flags(), p.Total-len(p.Header)-len(t)
	switch {
	case flags&packet.FlagSYN != 0 && t.Ack() != f.isn+1:
		m.inSYNACK(k, pkt)
	case flags&(packet.FlagSYN|packet.FlagRST|packet.FlagFIN|packet.FlagACK) == packet.FlagACK && (payload == 0 || f.state() == legReset):
		m.s.count.lateResets.Add(1)
		m.send(buildReset(p, t))
	default:
		m.s.count.lateSegments.Add(1)
	}
}
