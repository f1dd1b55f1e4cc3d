package datagram

import (
	"encoding/binary"
	"errors"
	"net/netip"

	ippacket "github.com/smcgw/smcgw/packet"
)

// The packets of the descriptor of A: virtio_net_hdr of 10 bytes (flags, gso_type,
// hdr_len, gso_size, csum_start, csum_offset in host order), IP, UDP.
const (
	vnetLen       = 10
	vnetNeedsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	udpCsumOffset = 6

	// headroom is what precedes the payload of a packet at most.
	headroom = vnetLen + ippacket.IPv6Len + ippacket.UDPLen
	// injectedTTL is the TTL of what is injected: its own did not travel. Datagrams
	// that depend on a small one (traceroute) go natively.
	injectedTTL = 64
	minTTL      = 32
)

// errNotCarried is a packet that UD cannot carry unchanged: not plain UDP, with
// options, a fragment, or with a TTL that matters.
var errNotCarried = errors.New("packet cannot be carried")

// udpPacket is a UDP packet taken apart; payload lies in the packet.
type udpPacket struct {
	endPair
	payload []byte
}

// parseUDP reads a packet as it comes from A, virtio header included. Its
// checksum is not looked at: it never left this host, and may not be complete.
func parseUDP(b []byte) (udpPacket, error) {
	if len(b) <= vnetLen || b[1] != 0 { // a super-packet is several datagrams
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

// payloadAt is where the payload of a packet for A begins, virtio header included.
func (e endPair) payloadAt() int {
	if e.src.Addr().Is4() {
		return vnetLen + ippacket.IPv4MinLen + ippacket.UDPLen
	}
	return vnetLen + ippacket.IPv6Len + ippacket.UDPLen
}

// putUDP writes the headers of a packet for A before its payload, which is
// b[at:at+n], and returns where the packet begins. The checksum is left to the
// kernel, as that of a local socket is: only its pseudo header is summed up. at
// must be at least headroom, n at most maxUDPPayload.
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

// fits reports whether a payload of n bytes is one of a UDP packet between
// these ends.
func (e endPair) fits(n int) bool {
	if e.src.Addr().Is4() {
		return n <= 65535-ippacket.IPv4MinLen-ippacket.UDPLen
	}
	return n <= maxPayload
}
