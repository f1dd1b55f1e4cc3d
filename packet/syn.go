package packet

import "net/netip"

// SYN is what the gateway needs to know of a SYN or SYN-ACK.
type SYN struct {
	Src, Dst netip.AddrPort // IPv4 unmapped
	Seq, Ack uint32
	Flags    uint8
	Window   uint16 // never scaled (RFC 7323, 2.2)
	TCPOptions
	ECN bool // ECN-setup flags (RFC 3168, 6.1.1)

	IPHeaderLen  int // bytes, with IPv6 extension headers
	TCPHeaderLen int // bytes, with options
	PayloadLen   int // by the lengths in the headers: the packet may be cut after them
}

// Carriable reports whether a connection begun by this SYN can be adopted and carried: plain TCP with timestamps (loss
// recovery of the wire leg needs them), and nothing in it that only the kernel can continue (docs/PROTOCOL.md "TCP option").
func (s *SYN) Carriable() bool {
	return s.TS && !s.ECN && !s.MPTCP && !s.TFO && !s.MD5 && !s.AO && s.PayloadLen == 0
}

// ParseSYN reads a raw IPv4 or IPv6 packet that begins or accepts a TCP connection. The headers must be complete, the
// payload need not be. It does not allocate. A segment without SYN is ErrNotSYN; the other errors are those of ParseIP and
// [IP.TCP].
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

// ecnSetup: ECE and CWR on a SYN, ECE alone on a SYN-ACK.
func ecnSetup(flags uint8) bool {
	ecn := flags & (FlagECE | FlagCWR)
	if flags&FlagACK != 0 {
		return ecn == FlagECE
	}
	return ecn == FlagECE|FlagCWR
}
