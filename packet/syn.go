package packet

import "net/netip"

// SYN has the fields of a SYN or SYN-ACK that the gateway needs.
type SYN struct {
	Src, Dst netip.AddrPort // IPv4 unmapped
	Seq, Ack uint32
	Flags    uint8
	Window   uint16 // never scaled (RFC 7323, 2.2)
	TCPOptions
	ECN bool // ECN-setup flags (RFC 3168, 6.1.1)

	IPHeaderLen  int // bytes, including IPv6 extension headers
	TCPHeaderLen int // bytes, including options
	PayloadLen   int // according to the headers; the packet may be truncated after them
}

// Carriable reports whether a connection that begins with this SYN can be adopted and carried: plain TCP with
// timestamps, which loss recovery of the wire leg needs, and without anything that only the kernel can continue
// (docs/PROTOCOL.md "TCP option").
func (s *SYN) Carriable() bool {
	return s.TS && !s.ECN && !s.MPTCP && !s.TFO && !s.MD5 && !s.AO && s.PayloadLen == 0
}

// ParseSYN parses a raw IPv4 or IPv6 packet that begins or accepts a TCP connection. The headers must be complete; the
// payload need not be. It does not allocate. It returns ErrNotSYN for a segment without SYN, and otherwise the errors
// of ParseIP and [IP.TCP].
func ParseSYN(pkt []byte) (SYN, error) {
	p, err := ParseIP(pkt)
	if err != nil {
		return SYN{}, err
	}
	t, err := p.TCP()
	if err != nil {
		return SYN{}, err
	}
	if t.Flags()&FlagSYN == 0 {
		return SYN{}, ErrNotSYN
	}
	return SYN{
		Src:          netip.AddrPortFrom(p.Src().Unmap(), t.SrcPort()),
		Dst:          netip.AddrPortFrom(p.Dst().Unmap(), t.DstPort()),
		Seq:          t.Seq(),
		Ack:          t.Ack(),
		Flags:        t.Flags(),
		Window:       t.Window(),
		TCPOptions:   ParseTCPOptions(t.Options()),
		ECN:          ecnSetup(t.Flags()),
		IPHeaderLen:  len(p.Header),
		TCPHeaderLen: len(t),
		PayloadLen:   p.Total - len(p.Header) - len(t),
	}, nil
}

// ecnSetup reports whether the flags request ECN: ECE and CWR on a SYN, ECE alone on a SYN-ACK.
func ecnSetup(flags uint8) bool {
	ecn := flags & (FlagECE | FlagCWR)
	if flags&FlagACK != 0 {
		return ecn == FlagECE
	}
	return ecn == FlagECE|FlagCWR
}
