package packet

import "encoding/binary"

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
