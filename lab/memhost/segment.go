package memhost

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
)

// Lengths and offsets in headers: RFC 791, RFC 8200, RFC 9293.
const (
	ip4Len       = 20
	ip6Len       = 40
	tcpMinLen    = 20
	tcpMaxLen    = 60
	tcpDataAt    = 12
	tcpFlagsAt   = 13
	protocolTCP  = 6
	ip4LengthAt  = 2
	ip4SumAt     = 10
	ip6LengthAt  = 4
	optionNOP    = 1
	optionPadded = negotiate.OptionLen + 2
)

// direction says which end of a packet is the local one.
type direction uint8

const (
	outbound direction = iota
	inbound
)

// segment is what the steering looks at of a packet.
type segment struct {
	raw      []byte
	tuple    ebpf.Tuple
	seq, ack uint32
	flags    uint8
	payload  int
	tcpAt    int // offset of the TCP header
	tcpLen   int
}

// parseSegment reads a raw TCP packet without IP options or extension headers;
// false for everything else.
func parseSegment(pkt []byte, dir direction) (segment, bool) {
	s := segment{raw: pkt}
	src, dst, ok := s.parseIP()
	if !ok || len(pkt) < s.tcpAt+tcpMinLen {
		return s, false
	}
	t := pkt[s.tcpAt:]
	s.tcpLen = int(t[tcpDataAt]>>4) * 4
	if s.tcpLen < tcpMinLen || len(t) < s.tcpLen {
		return s, false
	}
	s.seq, s.ack, s.flags = binary.BigEndian.Uint32(t[4:]), binary.BigEndian.Uint32(t[8:]), t[tcpFlagsAt]
	s.payload = len(t) - s.tcpLen
	from := netip.AddrPortFrom(src, binary.BigEndian.Uint16(t))
	to := netip.AddrPortFrom(dst, binary.BigEndian.Uint16(t[2:]))
	s.tuple = ebpf.Tuple{Local: from, Remote: to}
	if dir == inbound {
		s.tuple = reverse(s.tuple)
	}
	return s, true
}

// parseIP finds the addresses and the TCP header.
func (s *segment) parseIP() (src, dst netip.Addr, ok bool) {
	p := s.raw
	switch {
	case len(p) >= ip4Len && p[0] == 0x45 && p[9] == protocolTCP:
		s.tcpAt = ip4Len
		return netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20])), true
	case len(p) >= ip6Len && p[0]>>4 == 6 && p[6] == protocolTCP:
		s.tcpAt = ip6Len
		return netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40])), true
	default:
		return src, dst, false
	}
}

// reverse turns a tuple round.
func reverse(t ebpf.Tuple) ebpf.Tuple { return ebpf.Tuple{Local: t.Remote, Remote: t.Local} }

// has reports whether any of the flags is set.
func (s *segment) has(flags uint8) bool { return s.flags&flags != 0 }

// synOnly reports whether this is the SYN of a new connection.
func (s *segment) synOnly() bool {
	return s.flags&(negotiate.FlagSYN|negotiate.FlagACK|negotiate.FlagRST) == negotiate.FlagSYN
}

// synACK reports whether this is the answer to a SYN.
func (s *segment) synACK() bool {
	return s.flags&(negotiate.FlagSYN|negotiate.FlagACK) == negotiate.FlagSYN|negotiate.FlagACK
}

// option returns our option; false when there is none.
func (s *segment) option() (negotiate.Option, bool) {
	o, _, err := negotiate.ParseOption(s.options())
	return o, err == nil
}

func (s *segment) options() []byte { return s.raw[s.tcpAt+tcpMinLen : s.tcpAt+s.tcpLen] }

// carriable reports whether netstack could take over the connection of a SYN.
func (s *segment) carriable() bool {
	syn, err := negotiate.ParseSYN(s.raw)
	return err == nil && syn.Carriable() && !s.has(negotiate.FlagECE|negotiate.FlagCWR)
}

// offers reports whether this is a SYN with an offer.
func (s *segment) offers() bool {
	o, ok := s.option()
	return ok && o.Role == negotiate.RoleOffer && s.synOnly()
}

// addOption puts our option in front of the others; false when there is no
// room.
func (s *segment) addOption(o negotiate.Option) bool {
	if s.tcpLen+optionPadded > tcpMaxLen {
		return false
	}
	at := s.tcpAt + tcpMinLen
	p := make([]byte, 0, len(s.raw)+optionPadded)
	p = append(append(p, s.raw[:at]...), optionNOP, optionNOP)
	p = append(negotiate.AppendOption(p, o), s.raw[at:]...)
	s.raw = p
	s.tcpLen += optionPadded
	p[s.tcpAt+tcpDataAt] = byte(s.tcpLen/4) << 4
	s.setLength()
	return true
}

// stripOption overwrites our option, if there is one, by NOPs.
func (s *segment) stripOption() { s.overwrite(bytes.Repeat([]byte{optionNOP}, negotiate.OptionLen)) }

// overwrite puts other bytes in place of our option; false when there is none.
func (s *segment) overwrite(with []byte) bool {
	_, at, err := negotiate.ParseOption(s.options())
	if err != nil {
		return false
	}
	s.raw = append([]byte(nil), s.raw...)
	copy(s.options()[at:], with)
	s.setChecksum()
	return true
}

// setLength writes the packet's length and both checksums.
func (s *segment) setLength() {
	if s.tcpAt == ip6Len {
		binary.BigEndian.PutUint16(s.raw[ip6LengthAt:], uint16(len(s.raw)-ip6Len))
	} else {
		binary.BigEndian.PutUint16(s.raw[ip4LengthAt:], uint16(len(s.raw)))
		setHeaderSum(s.raw[:ip4Len])
	}
	s.setChecksum()
}

// setChecksum writes the TCP checksum. The packet was parsed, so this cannot
// fail.
func (s *segment) setChecksum() { _ = negotiate.RecomputeChecksum(s.raw) }

// setHeaderSum writes the checksum of an IPv4 header (RFC 791, 3.1).
func setHeaderSum(h []byte) {
	binary.BigEndian.PutUint16(h[ip4SumAt:], 0)
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(h[ip4SumAt:], ^uint16(sum))
}
