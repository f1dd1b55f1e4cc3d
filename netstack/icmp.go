package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/netstack/internal/pathsize"

	"github.com/smcgw/smcgw/packet"
)

const (
	icmpHeader = 8

	icmpUnreachable   = 3
	icmpFragNeeded    = 4
	icmpv6Unreachable = 1
	icmpv6TooBig      = 2
)

// inICMP passes on errors about segments of live flows that are on the way. The
// quoted sequence number must be one (RFC 5927 4.1): a blind sender must not
// shrink a path.
func (m *shim) inICMP(p packet.IP, pkt *stack.PacketBuffer) {
	f, mtu, ok := m.icmpFlow(p, pkt)
	if !ok {
		m.s.count.icmpIgnored.Add(1)
		return
	}
	if mtu > 0 {
		f.shrink(uint32(mtu - len(p.Header)))
	}
	m.s.count.icmpDelivered.Add(1)
	if c := f.conn.Load(); c == nil || c.mini.phase.Load() == legWhole {
		m.up(p, pkt) // a mini socket looks at the size each time
	}
}

// icmpFlow finds the flow an ICMP error is about; mtu is 0 for errors other
// than "packet too big".
func (m *shim) icmpFlow(p packet.IP, pkt *stack.PacketBuffer) (f *flow, mtu int, ok bool) {
	b, _ := pkt.Data().PullUp(min(pkt.Data().Size(), 2*maxHeaders))
	if len(b) < len(p.Header)+icmpHeader {
		return nil, 0, false
	}
	icmp := b[len(p.Header):]
	mtu, ok = icmpMTU(p.V6(), icmp)
	if !ok {
		return nil, 0, false
	}
	q, err := packet.ParseQuoted(icmp[icmpHeader:])
	if err != nil || q.Proto != packet.ProtoTCP || q.V6() != p.V6() {
		return nil, 0, false
	}
	seg := packet.TCP(q.Payload)
	f = m.s.flows.get(outboundKey(q.Header, seg))
	if f == nil || !f.alive() {
		return nil, 0, false
	}
	seq := seg.Seq()
	return f, mtu, !packet.After(f.una.Load(), seq) && !packet.After(seq, f.sent.Load())
}

// icmpMTU reads type and code: destination unreachable and packet too big.
func icmpMTU(v6 bool, icmp []byte) (mtu int, ok bool) {
	switch {
	case !v6 && icmp[0] == icmpUnreachable && icmp[1] == icmpFragNeeded:
		mtu = int(binary.BigEndian.Uint16(icmp[6:]))
		return mtu, mtu >= pathsize.Least4
	case v6 && icmp[0] == icmpv6TooBig:
		mtu = int(min(binary.BigEndian.Uint32(icmp[4:]), 1<<16))
		return mtu, mtu >= pathsize.Least6
	case v6:
		return 0, icmp[0] == icmpv6Unreachable
	default:
		return 0, icmp[0] == icmpUnreachable
	}
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
