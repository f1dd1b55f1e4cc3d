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

// shim is the link endpoint between gVisor and the wire. Everything that
// makes the stack special happens here, per packet, without I/O of its own.
type shim struct {
	nested.Endpoint
	s    *Stack
	open atomic.Bool // inbound packets are taken
}

var _ stack.LinkEndpoint = (*shim)(nil)

func newShim(s *Stack, lower stack.LinkEndpoint) *shim {
	m := &shim{s: s}
	m.Init(lower, m)
	return m
}

// Capabilities adds receive checksum offload: the shim verifies what the link
// did not, and gVisor could not once headers are translated.
func (m *shim) Capabilities() stack.LinkEndpointCapabilities {
	return m.Endpoint.Capabilities() | stack.CapabilityRXChecksumOffload
}

// WritePackets passes on what gVisor sends, rewritten where it must be.
func (m *shim) WritePackets(l stack.PacketBufferList) (int, tcpip.Error) {
	pkts := l.AsSlice()
	for i, p := range pkts {
		if repl, keep := m.outbound(p); !keep {
			return m.writeChanged(pkts, i, repl)
		}
	}
	return m.Endpoint.WritePackets(l)
}

// writeChanged writes pkts, of which the first n pass as they are and the next
// is replaced by repl (nothing: swallowed).
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

// send writes one packet of the shim's own making.
func (m *shim) send(p *stack.PacketBuffer) {
	defer p.DecRef()
	var l stack.PacketBufferList
	l.PushBack(p)
	_, _ = m.Endpoint.WritePackets(l) // a lost packet is TCP's daily business
}

// outbound decides about one packet of gVisor: keep it (possibly changed in
// place), or send repl instead of it.
func (m *shim) outbound(p *stack.PacketBuffer) (repl []*stack.PacketBuffer, keep bool) {
	t := p.TransportHeader().Slice()
	if p.TransportProtocolNumber != header.TCPProtocolNumber || len(t) < packet.TCPMinLen {
		m.s.count.swallowed.Add(1)
		return nil, false
	}
	ip := p.NetworkHeader().Slice()
	f := m.s.flows.get(outboundKey(ip, t))
	if f == nil || !f.alive() {
		m.s.count.swallowed.Add(1)
		return nil, false
	}
	g := f.grown.Load()
	if g == nil { // of the connection before on the tuple
		m.s.count.swallowed.Add(1)
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

// held keeps an acknowledgement back that something else will take along.
func (m *shim) held(f *flow, g *grown, p *stack.PacketBuffer, t packet.TCP) bool {
	held, fresh := g.acks.hold(p, t, f.quick.Load())
	if held {
		m.s.count.acksHeld.Add(1)
	}
	if fresh {
		m.s.acks.add(f)
	}
	return held
}

// outServer swallows gVisor's own SYN and translates everything else.
func (m *shim) outServer(f *flow, g *grown, p *stack.PacketBuffer, t packet.TCP) (keep bool) {
	if t.Flags()&packet.FlagSYN != 0 {
		g.numbers.Begin(t, g.origin, f.scale())
		return false
	}
	if f.refuses(t) || !g.numbers.Ready() {
		m.s.count.swallowed.Add(1)
		return false
	}
	m.translate(f, g, p, t)
	return true
}

// translate puts a segment of gVisor into the numbers of the wire.
func (m *shim) translate(f *flow, g *grown, p *stack.PacketBuffer, t packet.TCP) {
	g.numbers.Out(t, !link.Offloaded(p))
	g.numbers.Sent(sequenceEnd(p, t))
	f.noteSent(sequenceEnd(p, t))
	m.told(f, g, t)
}

// outClient swallows gVisor's own SYN and translates everything else.
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

// told notes what a segment of gVisor tells the peer of what has come.
func (m *shim) told(f *flow, g *grown, t packet.TCP) {
	if t.Flags()&packet.FlagACK != 0 {
		f.awaited.Store(t.Ack())
		g.ahead.Acked(&m.s.reorder, t.Ack(), selective(t))
	}
}

// DeliverNetworkPacket passes on what arrives if it is for a live flow.
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

// up hands pkt to gVisor.
func (m *shim) up(p packet.IP, pkt *stack.PacketBuffer) {
	m.Endpoint.DeliverNetworkPacket(link.Protocol(p.Header), pkt)
}

// inTCP routes one segment.
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
		m.inSYNACK(k, t, pkt)
	case mayProve(f, t) && m.s.proved(k, f, p, t, pkt):
	case f == nil:
		m.s.count.unknown.Add(1)
	case !f.alive():
		m.inLate(f, k, p, t, pkt)
	case f.server:
		m.inServer(f, p, t, pkt)
	case flags&packet.FlagSYN != 0 && t.Ack() != f.isn+1:
		m.inSYNACK(k, t, pkt) // of a newer connection: the owner has not ended this one yet
	default:
		m.inClient(f, p, t, pkt)
	}
}

// inClient gives a segment to an adopted flow.
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

// to gives a segment to what moves the bytes of f.
func (m *shim) to(f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	c := f.conn.Load()
	switch {
	case c == nil: // it has just ended
	case c.takes(p, t, pkt):
	default:
		m.translated(f, p, t, pkt)
	}
}

// translated gives a segment to gVisor, in its numbers, if there is room for what it would have to keep.
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

// refuseOld makes an old duplicate with n bytes, which gVisor would take, one of bytes that have come: gVisor drops it, and
// acknowledges.
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

// resume gives gVisor a segment that has waited for it.
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

// inServer gives a segment to an accepted flow, and watches for the confirm option.
func (m *shim) inServer(f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	m.replacedPeer(f, p, t, pkt)
	if !f.possible(t) {
		m.s.count.impossible.Add(1)
		return
	}
	if t.Flags()&(packet.FlagRST|packet.FlagACK) == packet.FlagACK {
		m.s.heard(f, t.Ack())
		f.acked(m.s, t.Ack())
		m.s.noteConfirm(f, t)
	}
	m.to(f, p, t, pkt)
}

// inSYN decides about a SYN without ACK.
func (m *shim) inSYN(k tupleKey, f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	o := packet.ParseTCPOptions(t.Options())
	if f != nil && f.inTimeWait() { // RFC 9293 3.6.1: a SYN may open it anew
		f.forget()
	}
	if f != nil && f.alive() {
		if !f.server || f.carrying.Load() || f.isn != t.Seq() {
			m.challenge(f, p, t, pkt) // RFC 5961 4: any host can have sent it
			return
		}
		if o.Option.Role == packet.RoleOffer && f.nonce == o.Option.Nonce {
			return // a late copy of the SYN that was answered
		}
	}
	m.newSYN(k, t, o, rawBytes(pkt))
}

// newSYN reports a SYN that belongs to no live flow as it is.
func (m *shim) newSYN(k tupleKey, t packet.TCP, o packet.TCPOptions, raw []byte) {
	syn := SYN{Tuple: k.tuple(), ISN: t.Seq(), Offer: o.Option.Role == packet.RoleOffer, Nonce: o.Option.Nonce, Raw: raw}
	if !syn.Offer {
		syn.Nonce = 0
		m.s.cfg.Handler.BareSYN(syn)
		return
	}
	m.s.cfg.Handler.OfferedSYN(syn)
}

// challenge gives a SYN to an endpoint that answers it by an ACK. It is kept for
// a while: an endpoint that was about to end may not have answered.
func (m *shim) challenge(f *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	f.challenged.Store(&challenged{isn: t.Seq(), raw: rawBytes(pkt), at: m.s.clock.NowMonotonic()})
	m.to(f, p, t, pkt)
}

// again looks once more at a SYN that met the flow f when it was about to end:
// a client that resets a connection may begin the next one on the tuple before
// the owner has ended the first.
func (m *shim) again(f *flow, raw []byte) {
	p, t, ok := parseTCP(raw)
	if !ok || !m.s.hold() {
		return
	}
	defer m.s.release()
	k := inboundKey(p.Header, t)
	if m.s.flows.get(k) != f {
		return // the tuple is another connection's by now
	}
	m.newSYN(k, t, packet.ParseTCPOptions(t.Options()), raw)
}

// inSYNACK reports a SYN-ACK of a tuple that the stack does not know yet.
func (m *shim) inSYNACK(k tupleKey, t packet.TCP, pkt *stack.PacketBuffer) {
	o := packet.ParseTCPOptions(t.Options())
	sa := SYNACK{Tuple: k.tuple(), ISN: t.Ack() - 1, Raw: rawBytes(pkt)}
	if o.Option.Role == packet.RoleAccept {
		sa.Accept, sa.Nonce = true, o.Option.Nonce
	}
	m.s.cfg.Handler.SYNACK(sa)
}

// inLate answers what arrives for an ended flow (docs/PROTOCOL.md "Teardown"): a
// challenge ACK by an exact reset; so is what is sent again, if we have reset the
// flow: that may have been lost. A SYN-ACK of a newer connection by asking the
// owner, the rest not at all.
func (m *shim) inLate(f *flow, k tupleKey, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	flags, payload := t.Flags(), p.Total-len(p.Header)-len(t)
	switch {
	case flags&packet.FlagSYN != 0 && t.Ack() != f.isn+1:
		m.inSYNACK(k, t, pkt)
	case flags&(packet.FlagSYN|packet.FlagRST|packet.FlagFIN|packet.FlagACK) == packet.FlagACK && (payload == 0 || f.state() == legReset):
		m.s.count.lateResets.Add(1)
		m.send(buildReset(p, t))
	default:
		m.s.count.lateSegments.Add(1)
	}
}
