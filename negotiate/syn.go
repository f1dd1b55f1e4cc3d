package negotiate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// TCP flags of SYN.Flags (RFC 9293, 3.1; RFC 3168).
const (
	FlagFIN = 0x01
	FlagSYN = 0x02
	FlagRST = 0x04
	FlagPSH = 0x08
	FlagACK = 0x10
	FlagURG = 0x20
	FlagECE = 0x40
	FlagCWR = 0x80
)

// TCP option kinds (IANA TCP parameters).
const (
	kindMSS       = 2
	kindWS        = 3
	kindSACKPerm  = 4
	kindTS        = 8
	kindMD5       = 19
	kindAO        = 29
	kindMPTCP     = 30
	kindTFO       = 34
	tfoExID       = 0xF989 // RFC 7413, appendix A
	ipProtoTCP    = 6
	tcpMinLen     = 20
	tcpChecksumAt = 16
)

// ErrNotSYN says that a packet is a TCP segment without SYN.
var ErrNotSYN = errors.New("not a syn")

var (
	errPacket   = fmt.Errorf("ip packet: %w", ErrMalformed)
	errFragment = fmt.Errorf("ip fragment: %w", ErrMalformed)
	errNotTCP   = fmt.Errorf("not tcp: %w", ErrMalformed)
	errTCP      = fmt.Errorf("tcp header: %w", ErrMalformed)
)

// SYN is what the gateway needs to know of a SYN or SYN-ACK.
type SYN struct {
	Src, Dst netip.AddrPort // IPv4 unmapped
	Seq, Ack uint32
	Flags    uint8
	Window   uint16

	MSS          uint16 // 0 when absent
	WS           int8   // window scale shift, -1 when absent
	SACK         bool   // SACK permitted
	TS           bool
	TSVal, TSEcr uint32
	ECN          bool // ECN-setup flags (RFC 3168, 6.1.1)
	MPTCP        bool
	TFO          bool // Fast Open option, either kind
	MD5, AO      bool

	// Option is ours; OptionOffset is its place in the packet, 0 when there is none.
	Option       Option
	OptionOffset int

	IPHeaderLen  int // with IPv6 extension headers
	TCPHeaderLen int
	PayloadLen   int // by the lengths in the headers: the packet may be cut after them
}

// IsACK reports whether this is a SYN-ACK.
func (s *SYN) IsACK() bool { return s.Flags&FlagACK != 0 }

// HasOption reports whether our option is there.
func (s *SYN) HasOption() bool { return s.OptionOffset != 0 }

// Carriable reports whether a connection begun by this SYN can be adopted and carried: plain TCP with timestamps (loss
// recovery of the wire leg needs them), and nothing in it that only the kernel can continue (docs/PROTOCOL.md "TCP option").
func (s *SYN) Carriable() bool {
	return s.TS && !s.ECN && !s.MPTCP && !s.TFO && !s.MD5 && !s.AO && s.PayloadLen == 0
}

// ParseSYN reads a raw IPv4 or IPv6 packet that begins or accepts a TCP connection. The headers must be complete, the
// payload need not be. It does not allocate.
func ParseSYN(pkt []byte) (SYN, error) {
	ip, err := parseIP(pkt)
	if err != nil {
		return SYN{}, err
	}
	tcp := pkt[ip.headerLen:]
	if len(tcp) < tcpMinLen {
		return SYN{}, errTCP
	}
	n := int(tcp[12]>>4) * 4
	if n < tcpMinLen || n > len(tcp) || ip.headerLen+n > ip.totalLen {
		return SYN{}, errTCP
	}
	s := SYN{
		Src:          netip.AddrPortFrom(ip.src, binary.BigEndian.Uint16(tcp)),
		Dst:          netip.AddrPortFrom(ip.dst, binary.BigEndian.Uint16(tcp[2:])),
		Seq:          binary.BigEndian.Uint32(tcp[4:]),
		Ack:          binary.BigEndian.Uint32(tcp[8:]),
		Flags:        tcp[13],
		Window:       binary.BigEndian.Uint16(tcp[14:]),
		WS:           -1,
		IPHeaderLen:  ip.headerLen,
		TCPHeaderLen: n,
		PayloadLen:   ip.totalLen - ip.headerLen - n,
	}
	if s.Flags&FlagSYN == 0 {
		return SYN{}, ErrNotSYN
	}
	s.ECN = s.ecnSetup()
	s.parseOptions(tcp[tcpMinLen:n])
	return s, nil
}

// ecnSetup: ECE and CWR on a SYN, ECE alone on a SYN-ACK.
func (s *SYN) ecnSetup() bool {
	ecn := s.Flags & (FlagECE | FlagCWR)
	if s.IsACK() {
		return ecn == FlagECE
	}
	return ecn == FlagECE|FlagCWR
}

func (s *SYN) parseOptions(area []byte) {
	for i := 0; i < len(area); {
		kind, n, ok := nextOption(area[i:])
		if !ok {
			return
		}
		s.parseOption(kind, area[i:i+n], s.IPHeaderLen+tcpMinLen+i)
		i += n
	}
}

func (s *SYN) parseOption(kind uint8, b []byte, offset int) {
	switch kind {
	case kindMSS:
		if len(b) == 4 {
			s.MSS = binary.BigEndian.Uint16(b[2:])
		}
	case kindWS:
		if len(b) == 3 {
			s.WS = int8(min(b[2], 14)) // RFC 7323, 2.3
		}
	case kindSACKPerm:
		s.SACK = len(b) == 2
	case kindTS:
		if len(b) == 10 {
			s.TS = true
			s.TSVal, s.TSEcr = binary.BigEndian.Uint32(b[2:]), binary.BigEndian.Uint32(b[6:])
		}
	case kindMD5:
		s.MD5 = true
	case kindAO:
		s.AO = true
	case kindMPTCP:
		s.MPTCP = true
	case kindTFO:
		s.TFO = true
	case optionKind:
		s.parseExperiment(b, offset)
	}
}

// parseExperiment looks at an option of the shared experimental kind (RFC 6994).
func (s *SYN) parseExperiment(b []byte, offset int) {
	if len(b) >= 4 && binary.BigEndian.Uint16(b[2:]) == tfoExID {
		s.TFO = true
		return
	}
	if o, ok := decodeOption(b); ok && !s.HasOption() {
		s.Option, s.OptionOffset = o, offset
	}
}
