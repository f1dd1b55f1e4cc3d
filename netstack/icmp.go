package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// quoted is the least an ICMP error says of the segment it is about: ports
	// and sequence number.
	quoted     = 8
	icmpHeader = 8

	icmpUnreachable   = 3
	icmpFragNeeded    = 4
	icmpv6Unreachable = 1
	icmpv6TooBig      = 2

	// Smaller path MTUs are refused: they are attacks or nonsense.
	minPathMTU4 = 552 // Linux's net.ipv4.route.min_pmtu
	minPathMTU6 = 1280
)

// inICMP passes on errors about segments of live flows that are on the way. The
// quoted sequence number must be one (RFC 5927 4.1): a blind sender must not
// shrink a path.
func (m *shim) inICMP(p inet, pkt *stack.PacketBuffer) {
	f, mtu, ok := m.icmpFlow(p, pkt)
	if !ok {
		m.s.count.icmpIgnored.Add(1)
		return
	}
	if mtu > 0 {
		f.shrink(uint32(mtu - len(p.ip)))
	}
	m.s.count.icmpDelivered.Add(1)
	m.up(p, pkt)
}

// icmpFlow finds the flow an ICMP error is about; mtu is 0 for errors other
// than "packet too big".
func (m *shim) icmpFlow(p inet, pkt *stack.PacketBuffer) (f *flow, mtu int, ok bool) {
	b, _ := pkt.Data().PullUp(min(pkt.Data().Size(), 2*maxHeaders))
	if len(b) < len(p.ip)+icmpHeader {
		return nil, 0, false
	}
	icmp := b[len(p.ip):]
	mtu, ok = icmpMTU(p.ip[0]>>4 == 6, icmp)
	if !ok {
		return nil, 0, false
	}
	ip, seg, ok := quotedTCP(icmp[icmpHeader:])
	if !ok || ip[0]>>4 != p.ip[0]>>4 {
		return nil, 0, false
	}
	f = m.s.flows.get(outboundKey(ip, seg))
	if f == nil || !f.alive() || f.adopt != nil && !f.adopt.ready.Load() {
		return nil, 0, false
	}
	seq := seqOf(seg)
	return f, mtu, !after(f.una.Load(), seq) && !after(seq, f.sent.Load())
}

// icmpMTU reads type and code: destination unreachable and packet too big.
func icmpMTU(v6 bool, icmp []byte) (mtu int, ok bool) {
	switch {
	case !v6 && icmp[0] == icmpUnreachable && icmp[1] == icmpFragNeeded:
		mtu = int(binary.BigEndian.Uint16(icmp[6:]))
		return mtu, mtu >= minPathMTU4
	case v6 && icmp[0] == icmpv6TooBig:
		mtu = int(min(binary.BigEndian.Uint32(icmp[4:]), 1<<16))
		return mtu, mtu >= minPathMTU6
	case v6:
		return 0, icmp[0] == icmpv6Unreachable
	default:
		return 0, icmp[0] == icmpUnreachable
	}
}

// quotedTCP finds the headers inside an ICMP error, which are cut off early.
func quotedTCP(b []byte) (ip, seg []byte, ok bool) {
	if len(b) < minIPv4Header {
		return nil, nil, false
	}
	hlen, proto := ipv6Header, byte(0)
	switch b[0] >> 4 {
	case 4:
		hlen, proto = int(b[0]&15)*4, b[9]
		if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return nil, nil, false
		}
	case 6:
		proto = b[6]
	default:
		return nil, nil, false
	}
	if proto != protoTCP || hlen < minIPv4Header || len(b) < hlen+quoted {
		return nil, nil, false
	}
	return b[:hlen], b[hlen : hlen+quoted], true
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
