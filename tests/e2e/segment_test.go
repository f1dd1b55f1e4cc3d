package e2e

import (
	endian "encoding/binary"
	"net/netip"

	"github.com/smcgw/smcgw/negotiate"
)

// segment is a TCP segment over IPv4, for tests that play a host whose kernel
// would not say what they say.
type segment struct {
	src, dst netip.AddrPort
	seq, ack uint32
	flags    byte
	options  []byte // a multiple of four bytes
	payload  []byte
}

// Flags of a segment.
const (
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

// synOptions are those of an ordinary SYN and ours, padded.
func synOptions(o negotiate.Option, tsVal, tsEcho uint32) []byte {
	b := []byte{2, 4, 5, 180, 4, 2, 8, 10}
	b = endian.BigEndian.AppendUint32(b, tsVal)
	b = endian.BigEndian.AppendUint32(b, tsEcho)
	b = append(b, 1, 3, 3, 7)
	b = negotiate.AppendOption(b, o)
	for len(b)%4 != 0 {
		b = append(b, 1)
	}
	return b
}

// bytes returns the packet, with right checksums.
func (s segment) bytes() []byte {
	head := 40 + len(s.options)
	p := make([]byte, head, head+len(s.payload))
	p[0], p[8], p[9] = 0x45, 64, 6
	endian.BigEndian.PutUint16(p[2:], uint16(head+len(s.payload)))
	endian.BigEndian.PutUint16(p[6:], 0x4000)
	src, dst := s.src.Addr().As4(), s.dst.Addr().As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	endian.BigEndian.PutUint16(p[10:], ^sum16(p[:20], 0))
	t := p[20:]
	endian.BigEndian.PutUint16(t, s.src.Port())
	endian.BigEndian.PutUint16(t[2:], s.dst.Port())
	endian.BigEndian.PutUint32(t[4:], s.seq)
	endian.BigEndian.PutUint32(t[8:], s.ack)
	t[12], t[13] = byte(len(t)/4)<<4, s.flags
	endian.BigEndian.PutUint16(t[14:], 0xffff)
	copy(t[20:], s.options)
	p = append(p, s.payload...)
	pseudo := uint32(sum16(p[12:20], 0)) + 6 + uint32(len(p)-20)
	endian.BigEndian.PutUint16(p[36:], ^sum16(p[20:], pseudo))
	return p
}

// sum16 is the sum of RFC 1071.
func sum16(b []byte, sum uint32) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(endian.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// readSegment reads a packet; what is in options and payload lies in p.
func readSegment(p []byte) (s segment, ok bool) {
	if len(p) < 40 || p[0] != 0x45 || p[9] != 6 {
		return s, false
	}
	t := p[20:min(len(p), int(endian.BigEndian.Uint16(p[2:])))]
	head := int(t[12]>>4) * 4
	if head < 20 || head > len(t) {
		return s, false
	}
	at := func(a []byte, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a)), endian.BigEndian.Uint16(port))
	}
	return segment{
		src: at(p[12:16], t), dst: at(p[16:20], t[2:]), seq: endian.BigEndian.Uint32(t[4:]), ack: endian.BigEndian.Uint32(t[8:]),
		flags: t[13], options: t[20:head], payload: t[head:],
	}, true
}

// tsValue returns the timestamp of a segment, 0 without one.
func (s segment) tsValue() uint32 {
	for o := s.options; len(o) > 0; {
		switch {
		case o[0] == 0:
			return 0
		case o[0] == 1:
			o = o[1:]
		case len(o) < 2 || int(o[1]) < 2 || int(o[1]) > len(o):
			return 0
		case o[0] == 8 && o[1] == 10:
			return endian.BigEndian.Uint32(o[2:])
		default:
			o = o[o[1]:]
		}
	}
	return 0
}
