package negotiate

import (
	"encoding/binary"
	"net/netip"
)

// ipHeader is what precedes a TCP segment in a raw packet.
type ipHeader struct {
	src, dst  netip.Addr
	headerLen int // to the TCP header
	totalLen  int // by the header, which may be more than the bytes at hand
}

func parseIP(pkt []byte) (ipHeader, error) {
	if len(pkt) == 0 {
		return ipHeader{}, errPacket
	}
	switch pkt[0] >> 4 {
	case 4:
		return parseIPv4(pkt)
	case 6:
		return parseIPv6(pkt)
	}
	return ipHeader{}, errPacket
}

// parseIPv4 reads the header of RFC 791, 3.1.
func parseIPv4(pkt []byte) (ipHeader, error) {
	if len(pkt) < 20 {
		return ipHeader{}, errPacket
	}
	h := ipHeader{
		src:       netip.AddrFrom4([4]byte(pkt[12:])),
		dst:       netip.AddrFrom4([4]byte(pkt[16:])),
		headerLen: int(pkt[0]&0x0f) * 4,
		totalLen:  int(binary.BigEndian.Uint16(pkt[2:])),
	}
	switch {
	case h.headerLen < 20 || h.headerLen > len(pkt) || h.totalLen < h.headerLen:
		return ipHeader{}, errPacket
	case binary.BigEndian.Uint16(pkt[6:])&0x3fff != 0: // more fragments, or an offset
		return ipHeader{}, errFragment
	case pkt[9] != ipProtoTCP:
		return ipHeader{}, errNotTCP
	}
	return h, nil
}

// IPv6 extension headers that may precede TCP (RFC 8200, 4). A routing header is not among them: with one the packet's
// destination is not the connection's.
const (
	extHopByHop = 0
	extFragment = 44
	extDest     = 60
)

// parseIPv6 reads the header of RFC 8200, 3, and steps over extension headers.
func parseIPv6(pkt []byte) (ipHeader, error) {
	if len(pkt) < 40 {
		return ipHeader{}, errPacket
	}
	h := ipHeader{
		src:       netip.AddrFrom16([16]byte(pkt[8:])).Unmap(),
		dst:       netip.AddrFrom16([16]byte(pkt[24:])).Unmap(),
		headerLen: 40,
		totalLen:  40 + int(binary.BigEndian.Uint16(pkt[4:])),
	}
	next := pkt[6]
	for next != ipProtoTCP {
		switch next {
		case extHopByHop, extDest:
		case extFragment:
			return ipHeader{}, errFragment
		default:
			return ipHeader{}, errNotTCP
		}
		if len(pkt) < h.headerLen+8 {
			return ipHeader{}, errPacket
		}
		next = pkt[h.headerLen]
		h.headerLen += 8 + int(pkt[h.headerLen+1])*8
	}
	if h.headerLen > len(pkt) || h.headerLen > h.totalLen {
		return ipHeader{}, errPacket
	}
	return h, nil
}
