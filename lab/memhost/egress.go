package memhost

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/packet"
)

// verdict is where a packet goes from a hook.
type verdict uint8

const (
	pass       verdict = iota // on its way
	drop                      // nowhere
	toSocket                  // to a socket of the gateway (A, or lo with its listener)
	toNetstack                // to netstack (W)
	toWire                    // to the network
	fromWire                  // to the applications' kernel, as if from the network
)

// deliver sends a packet where its verdict says; on is where it was going.
func (m *Model) deliver(v verdict, pkt []byte, on func([]byte)) {
	switch v {
	case pass:
		on(pkt)
	case toSocket:
		m.appLink.Inject(pkt)
	case toNetstack:
		m.tun.B().Send(pkt)
	case toWire:
		m.host.transmit(pkt)
	case fromWire:
		m.host.link.Inject(pkt)
	case drop:
	}
}

// egress is what the applications' kernel sends: the sockops program, then tcx
// egress of the wire device.
func (m *Model) egress(pkt []byte) {
	s, ok := parseSegment(pkt, outbound)
	if !ok {
		m.host.transmit(pkt)
		return
	}
	m.mu.Lock()
	m.sockops(&s)
	v := m.wireEgress(&s)
	m.mu.Unlock()
	m.deliver(v, s.raw, m.host.transmit)
}

func (m *Model) wireEgress(s *segment) verdict {
	f := m.flows[s.tuple]
	if s.synOnly() {
		return m.synOut(s, f)
	}
	state := stateOf(f)
	switch {
	case hasLeg(state), state == ebpf.StateDead:
		return toSocket
	case state == ebpf.StateNegotiating, state == ebpf.StateWire:
		return m.dropped(statOutDrop) // the tuple on the wire is netstack's
	default:
		return pass
	}
}

func (m *Model) synOut(s *segment, f *ebpf.Flow) verdict {
	if o, ok := s.option(); ok && o.Role == packet.RoleOffer {
		return m.offeredOut(s, o, f)
	}
	return m.bareOut(s, f)
}

// offeredOut records a SYN with an offer, or takes the offer out of it.
func (m *Model) offeredOut(s *segment, o packet.Option, f *ebpf.Flow) verdict {
	if f != nil && live(f.State) {
		m.replaced(f, 0)
	}
	reason, rule := m.offerObstacle(s, o)
	if reason == 0 && !m.create(s, ebpf.Flow{State: ebpf.StateOffered, Nonce: o.Nonce, Rule: rule}) {
		reason = ebpf.ReasonFlowLimit
	}
	if reason == 0 {
		m.count(statOffered)
		return pass
	}
	if f != nil {
		m.remove(f)
	}
	if n := m.notes[s.tuple]; n != nil {
		n.written = false // no hop on the way will see an option
	}
	s.stripOption()
	m.count(statNeutralised)
	m.stayNative(ebpf.Event{Tuple: s.tuple, ISN: s.seq, Reason: reason, Side: ebpf.SideClient, Rule: rule})
	return pass
}

// offerObstacle returns why a SYN that carries an offer must not go out with it.
func (m *Model) offerObstacle(s *segment, o packet.Option) (reason uint8, rule int) {
	n := m.notes[s.tuple]
	if n == nil || !n.written || n.nonce != o.Nonce {
		return ebpf.ReasonForwarded, ebpf.NoRule
	}
	if !s.carriable() {
		return ebpf.ReasonSYNOptions, n.rule
	}
	return 0, n.rule
}

// giveBack releases a connection that the gateway works on, and may have spoken on.
func (m *Model) giveBack(f *ebpf.Flow, reason uint8) {
	m.replaced(f, reason)
	m.nativeFlow(f, reason)
	m.release(f)
}

// release gives a connection to the kernel; the gateway has nothing more to say.
func (m *Model) release(f *ebpf.Flow) {
	m.move(f, ebpf.StateReleased)
	f.Silent = true
}

// spoken reports whether the server's gateway may have dialled its application.
func spoken(f *ebpf.Flow) bool { return f.Spoken || f.State == ebpf.StateCompleting }

// bareOut: a SYN without offer on a tuple that may have an entry.
func (m *Model) bareOut(s *segment, f *ebpf.Flow) verdict {
	switch {
	case f == nil:
		return pass
	case f.ISN != s.seq || f.Side == ebpf.SideServer:
		if live(f.State) {
			m.replaced(f, 0)
		}
		m.remove(f)
		return pass
	case f.State == ebpf.StateReleased:
		return pass // the kernel's own retransmission of a native SYN
	case f.State == ebpf.StateOffered:
		m.move(f, ebpf.StateReleased) // so that a late accept is dropped
		return pass
	case !m.aliveLocked() && !(m.lateLocked() && spoken(f)) && (f.State == ebpf.StateNegotiating || f.State == ebpf.StateCompleting):
		m.giveBack(f, ebpf.ReasonGatewayStale)
		return pass
	case live(f.State):
		return m.dropped(statSYNRetransmitDrop)
	}
	m.remove(f)
	return pass
}
