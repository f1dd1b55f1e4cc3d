package e2e

import (
	endian "encoding/binary"

	"github.com/smcgw/smcgw/packet"
)

// segment is a TCP segment over IPv4, for tests that play a host whose kernel would not send what they send.
type segment = packet.Segment

// Flags of a segment.
const (
	tcpSYN = packet.FlagSYN
	tcpACK = packet.FlagACK
)

// synOptions returns the options of an ordinary SYN and smcgw's, padded.
func synOptions(o packet.Option, tsVal, tsEcho uint32) []byte {
	b := []byte{2, 4, 5, 180, 4, 2, 8, 10}
	b = endian.BigEndian.AppendUint32(b, tsVal)
	b = endian.BigEndian.AppendUint32(b, tsEcho)
	b = append(b, 1, 3, 3, 7)
	b = packet.AppendOption(b, o)
	for len(b)%4 != 0 {
		b = append(b, 1)
	}
	return b
}

// raw returns the packet of a segment with an open window.
func raw(s segment) []byte {
	s.Window = 0xffff
	return s.Append(nil)
}

// readSegment parses a packet. Options and payload of the segment alias p.
func readSegment(p []byte) (segment, bool) {
	s, err := packet.ParseSegment(p)
	return s, err == nil && s.Src.Addr().Is4()
}

// tsValue returns the timestamp of a segment, 0 without one.
func tsValue(s segment) uint32 { return packet.ParseTCPOptions(s.Options).TSVal }
