package datagram

import (
	"encoding/binary"
	"errors"
	"net/netip"

	ippacket "github.com/smcgw/smcgw/packet"
)

// The packets on the app TUN: virtio_net_hdr of 10 bytes (flags, gso_type, hdr_len, gso_size,
// csum_start, csum_offset in host order), IP, UDP.
const (
	vnetLen       = 10
	vnetNeedsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	udpCsumOffset = 6

	// headroom is the maximum length of the headers before a packet's payload.
	headroom = vnetLen + ippacket.IPv6Len + ippacket.UDPLen
	// injectedTTL is the TTL of injected packets, since the original TTL is not transmitted.
	// Datagrams that depend on a small one (traceroute) go natively.
	injectedTTL = 64
	minTTL      = 32
)

// errNotCarried means that UD cannot carry a packet unchanged: it is not plain UDP, has
// options, is a fragment, or has a TTL that matters.
var errNotCarried = errors.New("packet cannot be carried")

// udpPacket is a parsed UDP packet; payload points into the packet.
type udpPacket struct {
	endPair
	payload []byte
}

// parseUDP parses a packet from the app TUN, including the virtio header. It ignores the
// checksum: the packet never left this host, and its checksum may be incomplete.
func parseUDP(b []byte) (udpPacket, error) {
	if len(b) <= vnetLen || b[1] != 0 { // a GSO packet holds several datagrams
		return udpPacket{}, errNotCarried
	}
	p, err := ippacket.ParseIP(b[vnetLen:])
	if err != nil || !p.Plain() || p.TTL() < minTTL {
		return udpPacket{}, errNotCarried
	}
	udp, payload, err := p.UDP()
	src, dst := p.Src(), p.Dst()
	if err != nil || src.Is4In6() || dst.Is4In6() {
		return udpPacket{}, errNotCarried
	}
	return udpPacket{
		endPair: endPair{src: netip.AddrPortFrom(src, udp.SrcPort()), dst: netip.AddrPortFrom(dst, udp.DstPort())},
		payload: payload,
	}, nil
}

// payloadAt returns the offset of the payload in a packet for the app TUN, including the
// virtio header.
func (e endPair) payloadAt() int {
	if e.src.Addr().Is4() {
		return vnetLen + ippacket.IPv4MinLen + ippacket.UDPLen
	}
	return vnetLen + ippacket.IPv6Len + ippacket.UDPLen
}

// putUDP writes the headers of a packet for the app TUN in front of its payload, which is
// b[at:at+n], and returns where the packet begins. The checksum covers only the pseudo
// header; the kernel completes it, as it does for a local socket. at must be at least
// headroom, and e.fits(n) must hold.
func putUDP(b []byte, at, n int, e endPair) (start int) {
	h := ippacket.Header{Src: e.src.Addr(), Dst: e.dst.Addr(), Proto: ippacket.ProtoUDP, TTL: injectedTTL}
	ip := b[at-ippacket.UDPLen-h.Len() : at-ippacket.UDPLen]
	h.Put(ip, ippacket.UDPLen+n)
	udp := ippacket.UDP(b[at-ippacket.UDPLen : at])
	udp.Put(e.src.Port(), e.dst.Port(), n)
	udp.SetChecksum(ippacket.PseudoSum(ip, ippacket.ProtoUDP, ippacket.UDPLen+n))
	start = at - ippacket.UDPLen - len(ip) - vnetLen
	vnet := b[start : start+vnetLen]
	clear(vnet)
	vnet[0] = vnetNeedsCsum
	binary.NativeEndian.PutUint16(vnet[6:], uint16(len(ip)))
	binary.NativeEndian.PutUint16(vnet[8:], udpCsumOffset)
	return start
}

// fits reports whether a payload of n bytes fits a UDP packet between these ends.
func (e endPair) fits(n int) bool {
	if e.src.Addr().Is4() {
		return n <= 65535-ippacket.IPv4MinLen-ippacket.UDPLen
	}
	return n <= maxPayload
}
