package memhost

import (
	"bytes"
	"net/netip"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/packet"
)

// optionPadded is what our option takes with two NOPs.
const optionPadded = packet.OptionLen + 2

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
	p, err := packet.ParseIP(pkt)
	if err != nil || !p.Plain() {
		return segment{raw: pkt}, false
	}
	t, err := p.TCP()
	if err != nil {
		return segment{raw: pkt}, false
	}
	s := segment{
		raw: pkt[:len(p.Header)+len(p.Payload)], seq: t.Seq(), ack: t.Ack(), flags: t.Flags(),
		payload: len(p.Payload) - len(t), tcpAt: len(p.Header), tcpLen: len(t),
	}
	from, to := netip.AddrPortFrom(p.Src(), t.SrcPort()), netip.AddrPortFrom(p.Dst(), t.DstPort())
	s.tuple = ebpf.Tuple{Local: from, Remote: to}
	if dir == inbound {
		s.tuple = reverse(s.tuple)
	}
	return s, true
}

// reverse turns a tuple round.
func reverse(t ebpf.Tuple) ebpf.Tuple { return ebpf.Tuple{Local: t.Remote, Remote: t.Local} }

// has reports whether any of the flags is set.
func (s *segment) has(flags uint8) bool { return s.flags&flags != 0 }

// synOnly reports whether this is the SYN of a new connection.
func (s *segment) synOnly() bool {
	return s.flags&(packet.FlagSYN|packet.FlagACK|packet.FlagRST) == packet.FlagSYN
}

// synACK reports whether this is the answer to a SYN.
func (s *segment) synACK() bool {
	return s.flags&(packet.FlagSYN|packet.FlagACK) == packet.FlagSYN|packet.FlagACK
}

// option returns our option; false if none.
func (s *segment) option() (packet.Option, bool) {
	o, _, err := packet.ParseOption(s.options())
	return o, err == nil
}

func (s *segment) options() []byte { return s.raw[s.tcpAt+packet.TCPMinLen : s.tcpAt+s.tcpLen] }

// carriable reports whether netstack could take over the connection of a SYN.
func (s *segment) carriable() bool {
	syn, err := packet.ParseSYN(s.raw)
	return err == nil && syn.Carriable() && !s.has(packet.FlagECE|packet.FlagCWR)
}

// offers reports whether this is a SYN with an offer.
func (s *segment) offers() bool {
	o, ok := s.option()
	return ok && o.Role == packet.RoleOffer && s.synOnly()
}

// addOption puts our option in front of the others; false when there is no
// room.
func (s *segment) addOption(o packet.Option) bool {
	if s.tcpLen+optionPadded > packet.TCPMaxLen {
		return false
	}
	at := s.tcpAt + packet.TCPMinLen
	p := make([]byte, 0, len(s.raw)+optionPadded)
	p = append(append(p, s.raw[:at]...), packet.KindNOP, packet.KindNOP)
	p = append(packet.AppendOption(p, o), s.raw[at:]...)
	s.raw = p
	s.tcpLen += optionPadded
	packet.TCP(p[s.tcpAt:]).SetHeaderLen(s.tcpLen)
	s.setLength()
	return true
}

// stripOption overwrites our option, if there is one, by NOPs.
func (s *segment) stripOption() { s.overwrite(bytes.Repeat([]byte{packet.KindNOP}, packet.OptionLen)) }

// overwrite puts other bytes in place of our option; false if none.
func (s *segment) overwrite(with []byte) bool {
	_, at, err := packet.ParseOption(s.options())
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
	packet.SetPayloadLen(s.raw[:s.tcpAt], len(s.raw)-s.tcpAt)
	s.setChecksum()
}

// setChecksum writes the TCP checksum. The packet was parsed, so this cannot
// fail.
func (s *segment) setChecksum() { _ = packet.SetTCPChecksum(s.raw) }
