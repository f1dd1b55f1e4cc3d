package memhost

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/packet"
)

// ingress is what arrives from the network: tcx ingress of the wire device.
func (m *Model) ingress(pkt []byte) {
	s, ok := parseSegment(pkt, inbound)
	if !ok {
		m.host.link.Inject(pkt)
		return
	}
	m.mu.Lock()
	v := m.wireIngress(&s)
	again := m.again
	m.again = nil
	m.mu.Unlock()
	m.deliver(v, s.raw, m.host.link.Inject)
	if again != nil {
		m.host.transmit(again)
	}
}

func (m *Model) wireIngress(s *segment) verdict {
	f := m.flows[s.tuple]
	if s.synOnly() {
		return m.synIn(s, f)
	}
	switch stateOf(f) {
	case ebpf.StateNone:
		return m.proofIn(s)
	case ebpf.StateOffered:
		return m.answerIn(s, f)
	case ebpf.StateReleased:
		return m.releasedIn(s, f)
	case ebpf.StateDead:
		return m.deadIn(s, f)
	case ebpf.StateReturned:
		return m.dropped(statReturnedDrop)
	default:
		return m.ownedIn(f)
	}
}

func (m *Model) synIn(s *segment, f *ebpf.Flow) verdict {
	o, _ := s.option()
	if f != nil && m.knownSYN(f) {
		switch again := f.Confirmed && f.ISN == s.seq && o.Role != packet.RoleOffer; {
		case m.aliveLocked():
			return m.netstackIn()
		case again && (f.State == ebpf.StateWire || f.State == ebpf.StateServing): // the client's gateway has given up
			m.remove(f)
			m.replaced(f, ebpf.ReasonGatewayStale)
			m.nativeFlow(f, ebpf.ReasonGatewayStale)
			return pass
		default:
			return m.dropped(statStaleDropped)
		}
	}
	if o.Role != packet.RoleOffer {
		return pass
	}
	return m.offeredIn(s, o)
}

// netstackIn is the way to netstack, which a stalled gateway does not read.
func (m *Model) netstackIn() verdict {
	if m.stalled {
		return drop
	}
	return toNetstack
}

// knownSYN: a SYN from the network on a tuple with an entry; false if the entry
// is gone and the SYN is to be treated as new.
func (m *Model) knownSYN(f *ebpf.Flow) bool {
	switch {
	case !live(f.State):
		m.remove(f)
		return false
	case !m.aliveLocked() && !m.lateLocked():
		m.count(statStaleDeleted)
		m.remove(f)
		return false
	default:
		return true
	}
}

// offeredIn: a SYN with an offer on a tuple without an entry worth keeping. It is
// answered, and nothing is kept.
func (m *Model) offeredIn(s *segment, o packet.Option) verdict {
	reason, rule := m.acceptRefused(s)
	if reason == 0 {
		return m.answer(s, o)
	}
	if reason != reasonNotOurs {
		m.stayNative(ebpf.Event{Tuple: s.tuple, ISN: s.seq, Reason: reason, Side: ebpf.SideServer, Rule: rule})
	}
	return pass
}

// acceptRefused returns why an offer of a peer is left to the kernel.
func (m *Model) acceptRefused(s *segment) (reason uint8, rule int) {
	if m.oddAddress(s.tuple.Remote.Addr()) {
		return ebpf.ReasonAddress, ebpf.NoRule
	}
	v := m.decide(ebpf.Query{Inbound: true, Peer: s.tuple.Remote.Addr(), Port: s.tuple.Local.Port(), Local: s.tuple.Local, Remote: s.tuple.Remote})
	switch {
	case v.Action == ebpf.ActionPass:
		return v.Reason, v.Rule
	case m.switchedOff() != 0:
		return m.switchedOff(), v.Rule
	case m.shed != 0:
		return m.shed, v.Rule
	case !s.carriable():
		return ebpf.ReasonSYNOptions, v.Rule
	case m.remembered(s.tuple) == ebpf.ReasonAcceptLost:
		return ebpf.ReasonAcceptLost, v.Rule
	case !m.host.kernel.Listening(s.tuple.Local, s.tuple.Remote):
		return reasonNotOurs, v.Rule
	default:
		return 0, v.Rule
	}
}

// answerIn: the answer to an offered SYN. Without our accept it is the kernel's; one
// that accepts never is.
func (m *Model) answerIn(s *segment, f *ebpf.Flow) verdict {
	if !s.has(packet.FlagSYN|packet.FlagRST) || !s.has(packet.FlagACK) || s.ack != f.ISN+1 {
		return pass
	}
	if s.has(packet.FlagRST) {
		return m.offerReset(s, f)
	}
	reason := ebpf.ReasonPeerNoOption
	o, _ := s.option()
	switch {
	case o.Role == packet.RoleAccept && o.Nonce == f.Nonce:
		m.optionPassed(s.tuple)
		f.Acked = true
		if m.aliveLocked() {
			m.move(f, ebpf.StateNegotiating)
			m.count(statAccepted)
			return m.netstackIn()
		}
		m.nativeFlow(f, ebpf.ReasonGatewayStale)
		m.release(f)
		return m.dropped(statStaleDropped)
	case o.Role == packet.RoleOffer:
		reason = ebpf.ReasonOptionMirrored
	}
	m.nativeFlow(f, reason)
	m.remove(f)
	return pass
}

// offerReset: a reset for an offered SYN may be of a box that knows no options, so the
// bare SYN is asked, and this reset acknowledges nothing any more. A kernel would then
// repeat its SYN at once; that of these hosts does after a second, so it is done in its
// place.
func (m *Model) offerReset(s *segment, f *ebpf.Flow) verdict {
	bare := append([]byte(nil), f.SYN...)
	if ok, err := packet.StripOption(bare); ok && err == nil && packet.SetTCPChecksum(bare) == nil {
		m.again = bare
	}
	if n := m.notes[f.Tuple]; n != nil {
		n.refused = true
	}
	m.count(statOfferRefused)
	m.move(f, ebpf.StateReleased)
	packet.TCP(s.raw[s.tcpAt:]).SetAck(0)
	s.setChecksum()
	return pass
}

// releasedIn: native from the first answer to the bare SYN on. A late copy of
// the old SYN-ACK, recognised by its accept, is not that answer. What else comes
// after a while the kernel resets.
func (m *Model) releasedIn(s *segment, f *ebpf.Flow) verdict {
	if o, _ := s.option(); s.has(packet.FlagSYN) && o.Role == packet.RoleAccept && o.Nonce == f.Nonce {
		return m.dropped(statReleasedDrop)
	}
	if f.ChangedAt+linger >= m.now() {
		answers := s.has(packet.FlagSYN | packet.FlagRST)
		if !answers && f.ChangedAt+challenged < m.now() {
			return pass
		}
		if !answers || s.ack != f.ISN+1 {
			return m.dropped(statReleasedDrop)
		}
	}
	m.remove(f)
	return pass
}

// deadIn: late segments are dropped; a pure ACK may be a challenge to our reset,
// which netstack answers by an exact one.
func (m *Model) deadIn(s *segment, f *ebpf.Flow) verdict {
	if f.ChangedAt+linger < m.now() && !m.legLives(s.tuple) {
		m.remove(f)
		return pass
	}
	const flags = packet.FlagSYN | packet.FlagACK | packet.FlagRST | packet.FlagFIN
	if s.flags&flags == packet.FlagACK && s.payload == 0 {
		return m.netstackIn()
	}
	return m.dropped(statDeadDrop)
}

// ownedIn: a segment of a wire leg. The application's kernel never gets one: the
// gateway may only be late, and may have sent bytes of its own.
func (m *Model) ownedIn(f *ebpf.Flow) verdict {
	if f.State == ebpf.StateNegotiating && !m.aliveLocked() && !m.lateLocked() {
		return m.dropped(statStaleDropped)
	}
	if f.State == ebpf.StateWire && m.lateLocked() {
		return m.dropped(statStaleDropped)
	}
	if f.State == ebpf.StateWire && !m.aliveLocked() {
		m.count(statStaleDeleted)
		m.remove(f)
		return pass
	}
	return m.netstackIn()
}
