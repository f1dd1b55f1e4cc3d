package packet

import (
	"encoding/binary"
	"net/netip"
)

// segmentTTL is the TTL of segments built here, Linux's default.
const segmentTTL = 64

// Segment is a TCP segment with the addresses of its packet. Numbers are in host byte order.
type Segment struct {
	Src, Dst netip.AddrPort // of the same family
	Seq, Ack uint32
	Flags    uint8  // FlagFIN and others
	Window   uint16 // before scaling
	Options  []byte // a multiple of four bytes
	Payload  []byte
}

// Append appends the whole packet, including the IP header, with valid checksums. Its TTL is 64.
func (s Segment) Append(b []byte) []byte {
	h := Header{Src: s.Src.Addr(), Dst: s.Dst.Addr(), Proto: ProtoTCP, TTL: segmentTTL}
	var head [IPv6Len]byte
	n := h.Put(head[:], TCPMinLen+len(s.Options)+len(s.Payload))
	b = append(b, head[:n]...)
	at := len(b)
	b = s.appendTCP(b)
	TCP(b[at:]).SetChecksum(^Sum(b[at:], PseudoSum(head[:n], ProtoTCP, len(b)-at)))
	return b
}

func (s Segment) appendTCP(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, s.Src.Port())
	b = binary.BigEndian.AppendUint16(b, s.Dst.Port())
	b = binary.BigEndian.AppendUint32(b, s.Seq)
	b = binary.BigEndian.AppendUint32(b, s.Ack)
	b = append(b, uint8((TCPMinLen+len(s.Options))/4)<<4, s.Flags)
	b = binary.BigEndian.AppendUint16(b, s.Window)
	b = append(b, 0, 0, 0, 0) // checksum, urgent pointer
	return append(append(b, s.Options...), s.Payload...)
}

// ParseSegment parses a packet whose TCP header must be present. Options and Payload alias pkt. It returns the errors
// of ParseIP and [IP.TCP].
func ParseSegment(pkt []byte) (Segment, error) {
	p, err := ParseIP(pkt)
	if err != nil {
		return Segment{}, err
	}
	t, err := p.TCP()
	if err != nil {
		return Segment{}, err
	}
	return Segment{
		Src: netip.AddrPortFrom(p.Src(), t.SrcPort()), Dst: netip.AddrPortFrom(p.Dst(), t.DstPort()),
		Seq: t.Seq(), Ack: t.Ack(), Flags: t.Flags(), Window: t.Window(),
		Options: t.Options(), Payload: p.Payload[len(t):],
	}, nil
}
