package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/netstack/internal/icmp"

	"github.com/smcgw/smcgw/packet"
)

// inICMP passes on errors about segments of live flows that are on the way. The
// quoted sequence number must be one (RFC 5927 4.1): a blind sender must not
// shrink a path.
func (m *shim) inICMP(p packet.IP, pkt *stack.PacketBuffer) {
	if !pkt.RXChecksumValidated && !sumOK(p, pkt) {
		m.s.count.checksumErrors.Add(1)
		return
	}
	f, mtu, ok := m.icmpFlow(p, pkt)
	if !ok {
		m.s.count.icmpIgnored.Add(1)
		return
	}
	if mtu > 0 {
		f.shrink(uint32(mtu - len(p.Header)))
	}
	m.s.count.icmpDelivered.Add(1)
	if f.state().endpoint() {
		m.up(p, pkt) // a mini socket looks at the size each time
	}
}

// icmpFlow finds the flow an ICMP error is about; mtu is 0 for errors other
// than "packet too big".
func (m *shim) icmpFlow(p packet.IP, pkt *stack.PacketBuffer) (f *flow, mtu int, ok bool) {
	b, _ := pkt.Data().PullUp(min(pkt.Data().Size(), 2*maxHeaders))
	e, ok := icmp.Read(p, b)
	if !ok {
		return nil, 0, false
	}
	f = m.s.flows.get(outboundKey(e.Quoted.Header, e.Segment))
	if f == nil || !f.alive() {
		return nil, 0, false
	}
	seq := e.Segment.Seq()
	return f, e.MTU, !packet.After(f.una.Load(), seq) && !packet.After(seq, f.sent.Load())
}

// shrink lowers the largest segment of f to n bytes of TCP header and payload.
func (f *flow) shrink(n uint32) {
	for {
		old := f.segMax.Load()
		if n >= old || f.segMax.CompareAndSwap(old, n) {
			return
		}
	}
}
