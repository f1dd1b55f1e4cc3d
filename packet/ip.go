package packet

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Lengths of IP headers: RFC 791, 3.1, and RFC 8200, 3.
const (
	IPv4MinLen = 20
	IPv4MaxLen = 60
	IPv6Len    = 40
)

// Protocol numbers (IANA).
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
)

// IP is a parsed IPv4 or IPv6 packet. Header and Payload alias the bytes from which it was parsed.
type IP struct {
	// Header is the network header, including IPv4 options or IPv6 extension headers.
	Header []byte
	// Payload is the part of the packet's payload that is present, without padding after the packet.
	Payload []byte
	// Total is the length of the packet according to its header. It may exceed the bytes that are present.
	Total int
	// Proto is the protocol of Payload.
	Proto uint8
}

// ParseIP parses the head of an IP packet. The network header must be complete; what follows need not be. It fails with
// ErrTruncated, ErrMalformed, or ErrFragment for a fragment. It does not verify checksums.
func ParseIP(b []byte) (p IP, err error) {
	fragment, err := p.read(b)
	switch {
	case err != nil:
		return IP{}, err
	case p.Total < len(p.Header):
		return IP{}, ErrMalformed
	case fragment != 0:
		return IP{}, ErrFragment
	}
	if n := p.Total - len(p.Header); n < len(p.Payload) {
		p.Payload = p.Payload[:n]
	}
	return p, nil
}

// quotedLen is the least that an ICMP error quotes of a transport header: ports and sequence number (RFC 792).
const quotedLen = 8

// ParseQuoted parses the head of the packet that an ICMP error quotes. Payload is everything that is quoted, at least
// eight bytes; Total may have been changed by routers. It accepts first fragments, which contain the transport header.
// It fails like ParseIP.
func ParseQuoted(b []byte) (p IP, err error) {
	fragment, err := p.read(b)
	switch {
	case err != nil:
		return IP{}, err
	case fragment&^moreFragments != 0:
		return IP{}, ErrFragment
	case len(p.Payload) < quotedLen:
		return IP{}, ErrTruncated
	}
	return p, nil
}

// moreFragments is the flag next to the 13 bits of the fragment offset (RFC 791, 3.1).
const moreFragments = 0x2000

// read parses a network header; Payload becomes the rest of b. fragment has the IPv4 flag and offset, and is 0 for a
// whole packet.
func (p *IP) read(b []byte) (fragment uint16, err error) {
	switch {
	case len(b) == 0:
		return 0, ErrTruncated
	case b[0]>>4 == 4:
		return p.readIPv4(b)
	case b[0]>>4 == 6:
		return 0, p.readIPv6(b)
	}
	return 0, ErrMalformed
}

// readIPv4 parses the header of RFC 791, 3.1: version and header length in words in byte 0, total length in bytes 2 and
// 3, flags and fragment offset in 6 and 7, protocol in 9.
func (p *IP) readIPv4(b []byte) (fragment uint16, err error) {
	if len(b) < IPv4MinLen {
		return 0, ErrTruncated
	}
	n := int(b[0]&0x0f) * 4
	switch {
	case n < IPv4MinLen:
		return 0, ErrMalformed
	case n > len(b):
		return 0, ErrTruncated
	}
	p.Header, p.Payload = b[:n], b[n:]
	p.Total, p.Proto = int(binary.BigEndian.Uint16(b[2:])), b[9]
	return binary.BigEndian.Uint16(b[6:]) & (moreFragments | 0x1fff), nil
}

// IPv6 extension headers that may precede a transport header (RFC 8200, 4). A routing header is not among them: with
// one the packet's destination is not the connection's.
const (
	extHopByHop = 0
	extFragment = 44
	extDest     = 60
)

// readIPv6 parses the header of RFC 8200, 3, and skips extension headers: payload length in bytes 4 and 5, next header
// in 6.
func (p *IP) readIPv6(b []byte) error {
	if len(b) < IPv6Len {
		return ErrTruncated
	}
	n, next := IPv6Len, b[6]
	for next == extHopByHop || next == extDest {
		if len(b) < n+8 {
			return ErrTruncated
		}
		next, n = b[n], n+8+int(b[n+1])*8
	}
	switch {
	case next == extFragment:
		return ErrFragment
	case n > len(b):
		return ErrTruncated
	}
	p.Header, p.Payload = b[:n], b[n:]
	p.Total, p.Proto = IPv6Len+int(binary.BigEndian.Uint16(b[4:])), next
	return nil
}

// V6 reports whether the packet is IPv6.
func (p *IP) V6() bool { return p.Header[0]>>4 == 6 }

// Plain reports whether the header has no IPv4 options and no IPv6 extension headers.
func (p *IP) Plain() bool {
	if p.V6() {
		return len(p.Header) == IPv6Len
	}
	return len(p.Header) == IPv4MinLen
}

// Whole reports whether all bytes of the packet are present.
func (p *IP) Whole() bool { return len(p.Header)+len(p.Payload) == p.Total }

// Src returns the source address. IPv4 addresses in IPv6 packets stay mapped.
func (p *IP) Src() netip.Addr {
	if p.V6() {
		return netip.AddrFrom16([16]byte(p.Header[8:]))
	}
	return netip.AddrFrom4([4]byte(p.Header[12:]))
}

// Dst returns the destination address.
func (p *IP) Dst() netip.Addr {
	if p.V6() {
		return netip.AddrFrom16([16]byte(p.Header[24:]))
	}
	return netip.AddrFrom4([4]byte(p.Header[16:]))
}

// addresses returns the source and destination: bytes 12 to 19 of IPv4, 8 to 39 of IPv6.
func addresses(header []byte) []byte {
	if header[0]>>4 == 6 {
		return header[8:IPv6Len]
	}
	return header[12:IPv4MinLen]
}

// TTL returns the time to live, or the hop limit of IPv6.
func (p *IP) TTL() uint8 {
	if p.V6() {
		return p.Header[7]
	}
	return p.Header[8]
}

// TOS returns the type of service, or the traffic class of IPv6: DSCP and ECN (RFC 2474, RFC 3168).
func (p *IP) TOS() uint8 {
	if p.V6() {
		return p.Header[0]<<4 | p.Header[1]>>4
	}
	return p.Header[1]
}

// SetPayloadLen sets the length of a packet with n bytes after the header, and the checksum of an IPv4 header.
func SetPayloadLen(header []byte, n int) {
	if header[0]>>4 == 6 {
		binary.BigEndian.PutUint16(header[4:], uint16(len(header)-IPv6Len+n))
		return
	}
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+n))
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], ^Sum(header, 0))
}

// Header has the fields of an IP header without options. Source and destination are of the same family.
type Header struct {
	Src, Dst netip.Addr
	Proto    uint8
	TTL      uint8
}

// Len returns the length of the header.
func (h Header) Len() int {
	if h.Src.Is4() {
		return IPv4MinLen
	}
	return IPv6Len
}

// Put writes the header of a packet with n bytes after it to the start of b, and returns its length. An IPv4 packet
// gets the don't-fragment flag, so it needs no identification (RFC 6864, 4).
func (h Header) Put(b []byte, n int) int {
	b = b[:h.Len()]
	if h.Src.Is4() {
		clear(b)
		b[0], b[6], b[8], b[9] = 0x45, 0x40, h.TTL, h.Proto
		src, dst := h.Src.As4(), h.Dst.As4()
		copy(b[12:], src[:])
		copy(b[16:], dst[:])
	} else {
		clear(b[:8])
		b[0], b[6], b[7] = 0x60, h.Proto, h.TTL
		src, dst := h.Src.As16(), h.Dst.As16()
		copy(b[8:], src[:])
		copy(b[24:], dst[:])
	}
	SetPayloadLen(b, n)
	return len(b)
}

// UDPLen is the length of a UDP header (RFC 768).
const UDPLen = 8

// UDP is a UDP header (RFC 768): ports in bytes 0 to 3, length in 4 and 5, checksum in 6 and 7.
type UDP []byte

// UDP returns the UDP header of the packet and the payload of the datagram, which must be present and fill the packet.
// It fails with ErrProtocol, ErrTruncated or ErrMalformed.
func (p *IP) UDP() (u UDP, payload []byte, err error) {
	switch {
	case p.Proto != ProtoUDP:
		return nil, nil, ErrProtocol
	case !p.Whole():
		return nil, nil, ErrTruncated
	case len(p.Payload) < UDPLen || int(binary.BigEndian.Uint16(p.Payload[4:])) != len(p.Payload):
		return nil, nil, ErrMalformed
	}
	return UDP(p.Payload[:UDPLen]), p.Payload[UDPLen:], nil
}

// SrcPort returns the source port, bytes 0 and 1.
func (u UDP) SrcPort() uint16 { return binary.BigEndian.Uint16(u) }

// DstPort returns the destination port, bytes 2 and 3.
func (u UDP) DstPort() uint16 { return binary.BigEndian.Uint16(u[2:]) }

// SetChecksum sets the checksum, bytes 6 and 7.
func (u UDP) SetChecksum(v uint16) { binary.BigEndian.PutUint16(u[udpChecksumAt:], v) }

// Put writes the header of a datagram with n bytes of payload, with a zero checksum.
func (u UDP) Put(src, dst uint16, n int) {
	binary.BigEndian.PutUint16(u, src)
	binary.BigEndian.PutUint16(u[2:], dst)
	binary.BigEndian.PutUint16(u[4:], uint16(UDPLen+n))
	u.SetChecksum(0)
}

// Errors of this package. They are returned unwrapped.
var (
	// ErrTruncated: the bytes end before the headers do.
	ErrTruncated = errors.New("truncated packet")
	// ErrMalformed: the lengths or versions in the headers contradict each other.
	ErrMalformed = errors.New("malformed packet")
	// ErrFragment: the packet is an IP fragment.
	ErrFragment = errors.New("ip fragment")
	// ErrProtocol: the packet carries another protocol than the requested one.
	ErrProtocol = errors.New("unexpected ip protocol")
)
