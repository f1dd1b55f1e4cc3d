package rogue

import (
	"encoding/binary"
	"net/netip"

	"github.com/smcgw/smcgw/packet"
)

const windowScale = 10

// segment is a TCP segment over IPv4 between two ends.
type segment struct {
	seq, ack uint32
	flags    uint8
	options  []byte
	payload  []byte
}

// synOptions returns the options of a Linux client's SYN, with the offer.
func synOptions(ts uint32, nonce uint16) []byte {
	b := []byte{2, 4, 0x05, 0xb4, 4, 2, 8, 10}
	b = binary.BigEndian.AppendUint32(b, ts)
	b = append(b, 0, 0, 0, 0, 1, 3, 3, windowScale)
	return append(packet.AppendOption(b, option(packet.RoleOffer, nonce)), 1, 1)
}

func option(r packet.Role, nonce uint16) packet.Option {
	return packet.Option{Version: packet.OptionVersion, Role: r, Nonce: nonce}
}

// timestamps returns the options of every other segment.
func timestamps(ts, echo uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{1, 1, 8, 10}, ts)
	return binary.BigEndian.AppendUint32(b, echo)
}

// bytes returns the bytes after the IP header.
func (s segment) bytes(from, to netip.AddrPort) []byte {
	pkt := packet.Segment{
		Src: from, Dst: to, Seq: s.seq, Ack: s.ack, Flags: s.flags, Window: 0xffff, Options: s.options, Payload: s.payload,
	}.Append(nil)
	return pkt[packet.IPv4MinLen:]
}

// split parses a packet of a raw socket. It returns false if the packet does not belong to the connection.
func split(pkt []byte, from, to netip.AddrPort) (segment, bool) {
	s, err := packet.ParseSegment(pkt)
	ok := err == nil && s.Src.Addr().Is4() && s.Src.Port() == from.Port() && s.Dst.Port() == to.Port()
	return segment{seq: s.Seq, ack: s.Ack, flags: s.Flags, options: s.Options, payload: s.Payload}, ok
}

// stamp returns the timestamp of the other side.
func (s segment) stamp() (ts uint32, ok bool) {
	o := packet.ParseTCPOptions(s.options)
	return o.TSVal, o.TS
}
