package memhost

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/packet"
)

// fromUser is what user space writes: netstack to W, and InjectApp to A.
func (m *Model) fromUser(pkt []byte) {
	hook := m.wireSide
	if pkt[0] == injected {
		hook, pkt = m.appIngress, pkt[1:]
	}
	s, ok := parseSegment(pkt, outbound)
	if !ok {
		return
	}
	m.mu.Lock()
	v := hook(&s)
	m.mu.Unlock()
	m.deliver(v, s.raw, m.host.transmit)
}

// appIngress is tcx ingress of A for the SYNs user space writes. (Application
// segments that the wire program sends to A need no second look here.)
func (m *Model) appIngress(s *segment) verdict {
	f := m.flows[s.tuple]
	switch {
	case !s.synOnly():
		return m.dropped(statAppIngressDrop)
	case f != nil && f.ISN == s.seq && f.State == ebpf.StateCompleting:
		m.count(statSYNDelivered)
		return toSocket
	case f != nil && f.ISN == s.seq && f.State == ebpf.StateReleased:
		m.count(statSYNReleased)
		return toWire
	default:
		return m.returnedSYN(s)
	}
}

// returnedSYN: a SYN of the network that user space returns to the kernel.
func (m *Model) returnedSYN(s *segment) verdict {
	f := m.flows[reverse(s.tuple)]
	if stateOf(f) != ebpf.StateReturned {
		return m.dropped(statAppIngressDrop)
	}
	m.remove(f)
	m.count(statSYNReturned)
	return fromWire
}

// appEgress is what gateway sockets send to the application.
func (m *Model) appEgress(pkt []byte) {
	s, ok := parseSegment(pkt, inbound)
	if !ok {
		return
	}
	m.mu.Lock()
	v := m.legIngress(&s)
	m.mu.Unlock()
	m.deliver(v, s.raw, nil)
}

// legIngress is tcx ingress of the pair. A reset with an acknowledgement and without a
// sequence number is that of a kernel whose listener has gone.
func (m *Model) legIngress(s *segment) verdict {
	if s.has(packet.FlagRST) && s.has(packet.FlagACK) && s.seq == 0 {
		return m.dropped(statLegIngressDrop)
	}
	if state := stateOf(m.flows[s.tuple]); !hasLeg(state) && state != ebpf.StateDead && m.legs[s.tuple] == nil {
		return m.dropped(statLegIngressDrop)
	}
	return fromWire
}

// wireSide is tcx ingress of W: netstack's segments. Of a released flow only the
// reset that closes the old wire leg, and a bare SYN after it, may leave; on a
// tuple where the application has begun again, only the reset of its old one.
func (m *Model) wireSide(s *segment) verdict {
	f := m.flows[s.tuple]
	state := stateOf(f)
	switch {
	case m.stalled, state == ebpf.StateNone, f.Silent, state == ebpf.StateOffered && !s.has(packet.FlagRST):
		return m.dropped(statWireIngressDrop)
	case (state == ebpf.StateReleased || state == ebpf.StateReturned) &&
		!s.has(packet.FlagRST|packet.FlagSYN):
		return m.dropped(statWireIngressDrop)
	case state == ebpf.StateNegotiating && !s.has(packet.FlagRST|packet.FlagSYN):
		f.Spoken = true
	}
	return toWire
}
