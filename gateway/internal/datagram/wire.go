package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	ippacket "github.com/smcgw/smcgw/packet"
	"github.com/smcgw/smcgw/rsocket"
)

// The messages between gateways on UD (docs/PROTOCOL.md "Datagrams"). A whole datagram is a
// SEND: ds_header of the source, ds_header of the destination, payload. A SEND_WITH_IMM is a
// piece of a longer datagram or a control message, depending on the two highest bits of the
// immediate:
//
//	00  piece    id[29:16] last[15] index[14:0]    both headers and the piece
//	01  control  zero[29:8] type[7:0]              see the types
const (
	kindShift   = 30
	kindPiece   = 0
	kindControl = 1

	idBits    = 14
	idMask    = 1<<idBits - 1
	lastBit   = 1 << 15
	indexMask = lastBit - 1
)

// The control messages. The payload of a PROBE is returned as ECHO. NATIVE names a service,
// as a ds_header, to which nothing is to be carried for a while, followed by reason(1) and
// seconds(2). Port 0 means every service of the address.
const (
	controlProbe  = 1
	controlEcho   = 2
	controlNative = 3
)

const (
	// headers4 and headers6 are the lengths of the headers before the payload on UD.
	headers4 = 2 * rsocket.DatagramHeader4Len
	headers6 = 2 * rsocket.DatagramHeader6Len
	// maxPayload is the longest payload of a datagram, that of IPv6.
	maxPayload = 65535 - 8
	// minMTU is the smallest MTU of UD, the minimum of InfiniBand.
	minMTU = 256
	// maxPieces is the number of pieces of the longest payload at the smallest MTU.
	maxPieces = (maxPayload + minMTU - headers6 - 1) / (minMTU - headers6)
)

// errMalformed means a message on UD that no gateway sends.
var errMalformed = errors.New("malformed datagram message")

// pieceImm returns the immediate of a piece.
func pieceImm(id uint16, index int, last bool) uint32 {
	imm := uint32(kindPiece)<<kindShift | uint32(id&idMask)<<16 | uint32(index)
	if last {
		imm |= lastBit
	}
	return imm
}

// controlImm returns the immediate of a control message.
func controlImm(kind uint8) uint32 { return kindControl<<kindShift | uint32(kind) }

// immediate is a parsed immediate.
type immediate struct {
	control uint8 // type; 0 for a piece
	id      uint16
	index   int
	last    bool
}

func parseImmediate(imm uint32) (immediate, error) {
	switch {
	case imm>>kindShift == kindPiece:
		p := immediate{id: uint16(imm >> 16 & idMask), last: imm&lastBit != 0, index: int(imm & indexMask)}
		if p.index >= maxPieces {
			return immediate{}, fmt.Errorf("piece %d: %w", p.index, errMalformed)
		}
		return p, nil
	case imm>>kindShift == kindControl && imm>>8&0x3fffff == 0 && imm&0xff != 0:
		return immediate{control: uint8(imm)}, nil
	}
	return immediate{}, fmt.Errorf("immediate %#x: %w", imm, errMalformed)
}

// endPair holds the two ends of a datagram, as its sender sees them.
type endPair struct{ src, dst netip.AddrPort }

// headersLen returns the length of both headers.
func (e endPair) headersLen() int {
	if e.src.Addr().Is4() {
		return headers4
	}
	return headers6
}

// append appends both headers.
func (e endPair) append(b []byte) []byte {
	b = rsocket.DatagramHeader{Source: e.src}.Append(b)
	return rsocket.DatagramHeader{Source: e.dst}.Append(b)
}

// parseMessage parses both headers at the beginning of b; payload is the rest.
func parseMessage(b []byte) (e endPair, payload []byte, err error) {
	src, b, err := rsocket.ParseDatagramHeader(b)
	if err != nil {
		return e, nil, err
	}
	dst, payload, err := rsocket.ParseDatagramHeader(b)
	if err != nil {
		return e, nil, err
	}
	e = endPair{src: src.Source, dst: dst.Source}
	from, to := e.src.Addr(), e.dst.Addr()
	switch {
	case from.Is4() != to.Is4(), from.Is4In6(), to.Is4In6(),
		from.IsUnspecified(), from.IsMulticast(), to.IsUnspecified(), to.IsMulticast():
		return endPair{}, nil, fmt.Errorf("from %v to %v: %w", e.src, e.dst, errMalformed)
	case e.dst.Port() == 0:
		return endPair{}, nil, fmt.Errorf("port 0: %w", errMalformed)
	}
	return e, payload, nil
}

// nativeNotice is the payload of NATIVE.
type nativeNotice struct {
	service netip.AddrPort // port 0: the whole address
	reason  uint8
	seconds uint16
}

func (n nativeNotice) append(b []byte) []byte {
	b = rsocket.DatagramHeader{Source: n.service}.Append(b)
	return append(b, n.reason, byte(n.seconds>>8), byte(n.seconds))
}

func parseNativeNotice(b []byte) (nativeNotice, error) {
	h, rest, err := rsocket.ParseDatagramHeader(b)
	if err != nil {
		return nativeNotice{}, err
	}
	if len(rest) != 3 || rest[0] == 0 && h.Source.Port() != 0 || h.Source.Addr().Is4In6() {
		return nativeNotice{}, fmt.Errorf("notice about %v with %d bytes: %w", h.Source, len(rest), errMalformed)
	}
	return nativeNotice{service: h.Source, reason: rest[0], seconds: uint16(rest[1])<<8 | uint16(rest[2])}, nil
}

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
