package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/packet"
)

// icmpHeaderLen is the length of the header before the quoted packet.
const icmpHeaderLen = 8

// Types and codes of the errors that are handled.
const (
	icmpUnreachable   = 3
	icmpFragNeeded    = 4
	icmpV6Unreachable = 1
	icmpV6TooBig      = 2
)

// icmpError is an ICMP error about a segment that a wire leg has sent.
type icmpError struct {
	quoted  packet.IP // of a segment; the payload is the quoted part of it
	segment packet.TCP
	mtu     int // 0 if the error is not about the size
}

// readICMP parses the error in b, the head of the packet p. ok is false if it is not an error, or is about something
// other than a segment. It knows no flows: the caller checks whether the quoted segment is in flight, and verifies the
// checksum.
func readICMP(p packet.IP, b []byte) (e icmpError, ok bool) {
	if len(b) < len(p.Header)+icmpHeaderLen {
		return icmpError{}, false
	}
	b = b[len(p.Header):]
	if e.mtu, ok = icmpMTU(p.V6(), b); !ok {
		return icmpError{}, false
	}
	q, err := packet.ParseQuoted(b[icmpHeaderLen:])
	if err != nil || q.Proto != packet.ProtoTCP || q.V6() != p.V6() {
		return icmpError{}, false
	}
	e.quoted, e.segment = q, packet.TCP(q.Payload)
	return e, true
}

// icmpMTU parses type and code: destination unreachable, or packet too big for a path of the returned MTU.
func icmpMTU(v6 bool, b []byte) (mtu int, ok bool) {
	switch {
	case !v6 && b[0] == icmpUnreachable && b[1] == icmpFragNeeded:
		mtu = int(binary.BigEndian.Uint16(b[6:]))
		return mtu, mtu >= segment.LeastMTU4
	case v6 && b[0] == icmpV6TooBig:
		mtu = int(min(binary.BigEndian.Uint32(b[4:]), 1<<16))
		return mtu, mtu >= segment.LeastMTU6
	case v6:
		return 0, b[0] == icmpV6Unreachable
	default:
		return 0, b[0] == icmpUnreachable
	}
}

// inICMP passes on errors about in-flight segments of live flows. The quoted sequence number must be in flight (RFC
// 5927 4.1), so that a blind sender cannot shrink a path.
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
		m.up(p, pkt) // a mini socket checks the size for every segment
	}
}

// icmpFlow returns the flow that an ICMP error is about. mtu is 0 for errors other than "packet too big".
func (m *shim) icmpFlow(p packet.IP, pkt *stack.PacketBuffer) (f *flow, mtu int, ok bool) {
	b, _ := pkt.Data().PullUp(min(pkt.Data().Size(), 2*maxHeaders))
	e, ok := readICMP(p, b)
	if !ok {
		return nil, 0, false
	}
	f = m.s.flows.get(outboundKey(e.quoted.Header, e.segment))
	if f == nil || !f.alive() {
		return nil, 0, false
	}
	seq := e.segment.Seq()
	return f, e.mtu, !packet.After(f.una.Load(), seq) && !packet.After(seq, f.sent.Load())
}

// shrink lowers the largest segment of f to n bytes, TCP header and payload.
func (f *flow) shrink(n uint32) {
	for {
		old := f.segMax.Load()
		if n >= old || f.segMax.CompareAndSwap(old, n) {
			return
		}
	}
}
