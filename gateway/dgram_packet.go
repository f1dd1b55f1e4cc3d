package gateway

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// The packets of the descriptor of A: virtio_net_hdr of 10 bytes (flags, gso_type,
// hdr_len, gso_size, csum_start, csum_offset in host order), IP, UDP.
const (
	vnetLen       = 10
	vnetNeedsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM

	ip4Len, ip6Len, udpLen = 20, 40, 8
	udpCsumOffset          = 6
	protoUDP               = 17

	// dgramHeadroom is what precedes the payload of a packet at most.
	dgramHeadroom = vnetLen + ip6Len + udpLen
	// dgramTTL is the TTL of what is injected: its own did not travel. Datagrams
	// that depend on a small one (traceroute) go natively.
	dgramTTL    = 64
	dgramMinTTL = 32
)

// errNotCarried is a packet that UD cannot carry unchanged: not plain UDP, with
// options, a fragment, or with a TTL that matters.
var errNotCarried = errors.New("packet cannot be carried")

// udpPacket is a UDP packet taken apart; payload lies in the packet.
type udpPacket struct {
	dgramEnds
	payload []byte
}

// parseUDP reads a packet as it comes from A, virtio header included. Its
// checksum is not looked at: it never left this host, and may not be complete.
func parseUDP(b []byte) (udpPacket, error) {
	if len(b) <= vnetLen || b[1] != 0 { // a super-packet is several datagrams
		return udpPacket{}, errNotCarried
	}
	var src, dst netip.Addr
	ip := b[vnetLen:]
	switch {
	case ip[0] == 0x45 && len(ip) >= ip4Len+udpLen:
		total := int(binary.BigEndian.Uint16(ip[2:]))
		if total > len(ip) || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 || ip[8] < dgramMinTTL || ip[9] != protoUDP {
			return udpPacket{}, errNotCarried
		}
		src, dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
		ip = ip[ip4Len:max(total, ip4Len)]
	case ip[0]>>4 == 6 && len(ip) >= ip6Len+udpLen:
		total := ip6Len + int(binary.BigEndian.Uint16(ip[4:]))
		if total > len(ip) || ip[6] != protoUDP || ip[7] < dgramMinTTL {
			return udpPacket{}, errNotCarried
		}
		src, dst = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
		ip = ip[ip6Len:total]
	default:
		return udpPacket{}, errNotCarried
	}
	if len(ip) < udpLen || int(binary.BigEndian.Uint16(ip[4:])) != len(ip) || src.Is4In6() || dst.Is4In6() {
		return udpPacket{}, errNotCarried
	}
	return udpPacket{
		dgramEnds: dgramEnds{
			src: netip.AddrPortFrom(src, binary.BigEndian.Uint16(ip)),
			dst: netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ip[2:])),
		},
		payload: ip[udpLen:],
	}, nil
}

// payloadAt is where the payload of a packet for A begins, virtio header included.
func (e dgramEnds) payloadAt() int {
	if e.src.Addr().Is4() {
		return vnetLen + ip4Len + udpLen
	}
	return vnetLen + ip6Len + udpLen
}

// putUDP writes the headers of a packet for A before its payload, which is
// b[at:at+n], and returns where the packet begins. The checksum is left to the
// kernel, as that of a local socket is: only its pseudo header is summed up. at
// must be at least dgramHeadroom, n at most maxUDPPayload.
func putUDP(b []byte, at, n int, e dgramEnds) (start int) {
	udp := b[at-udpLen : at]
	binary.BigEndian.PutUint16(udp, e.src.Port())
	binary.BigEndian.PutUint16(udp[2:], e.dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
	ipLen := ip6Len
	sum := uint32(udpLen+n) + protoUDP
	if e.src.Addr().Is4() {
		ipLen = ip4Len
		ip := b[at-udpLen-ip4Len : at-udpLen]
		putIPv4(ip, udpLen+n, e)
		sum += sum16(ip[12:20])
	} else {
		ip := b[at-udpLen-ip6Len : at-udpLen]
		putIPv6(ip, udpLen+n, e)
		sum += sum16(ip[8:40])
	}
	binary.BigEndian.PutUint16(udp[udpCsumOffset:], fold(sum))
	start = at - udpLen - ipLen - vnetLen
	h := b[start : start+vnetLen]
	clear(h)
	h[0] = vnetNeedsCsum
	binary.NativeEndian.PutUint16(h[6:], uint16(ipLen))
	binary.NativeEndian.PutUint16(h[8:], udpCsumOffset)
	return start
}

// putIPv4 writes a header without options: what is behind it fits one packet
// here, so it is never fragmented (RFC 6864: no identification needed).
func putIPv4(ip []byte, n int, e dgramEnds) {
	clear(ip)
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(ip4Len+n))
	ip[6] = 0x40
	ip[8], ip[9] = dgramTTL, protoUDP
	src, dst := e.src.Addr().As4(), e.dst.Addr().As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum16(ip)))
}

func putIPv6(ip []byte, n int, e dgramEnds) {
	clear(ip[:8])
	ip[0] = 0x60
	binary.BigEndian.PutUint16(ip[4:], uint16(n))
	ip[6], ip[7] = protoUDP, dgramTTL
	src, dst := e.src.Addr().As16(), e.dst.Addr().As16()
	copy(ip[8:], src[:])
	copy(ip[24:], dst[:])
}

// fits reports whether a payload of n bytes is one of a UDP packet between
// these ends.
func (e dgramEnds) fits(n int) bool {
	if e.src.Addr().Is4() {
		return n <= 65535-ip4Len-udpLen
	}
	return n <= dgramMaxPayload
}

// sum16 adds up an even number of bytes as the Internet checksum does.
func sum16(b []byte) (sum uint32) {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
