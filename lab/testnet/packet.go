package testnet

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/packet"
)

// packetView has the offsets in a frame (virtio header, Ethernet, IP without extension headers) of any protocol.
// Fragments have no view.
type packetView struct {
	frame []byte
	ip    int // offset of the IP header
	l4    int // offset of the IP payload
	last  int // end of the IP packet
	proto byte
	v6    bool
}

func viewPacket(frame []byte) (packetView, bool) {
	v := packetView{frame: frame, ip: vnetHeaderLen + 14}
	p, ok := ipOf(frame)
	if !ok || !p.Whole() {
		return v, false
	}
	v.l4, v.last, v.proto, v.v6 = v.ip+len(p.Header), v.ip+p.Total, p.Proto, p.V6()
	return v, true
}

// ipOf parses the IP packet of a frame.
func ipOf(frame []byte) (packet.IP, bool) {
	const at = vnetHeaderLen + 14
	if len(frame) < at {
		return packet.IP{}, false
	}
	p, err := packet.ParseIP(frame[at:])
	kind := binary.BigEndian.Uint16(frame[at-2:])
	return p, err == nil && (kind == unix.ETH_P_IP && !p.V6() || kind == unix.ETH_P_IPV6 && p.V6())
}

// frameView is the view of a TCP segment.
type frameView struct {
	packetView
	packet.TCP
}

func viewFrame(frame []byte) (frameView, bool) {
	v, ok := viewPacket(frame)
	if !ok {
		return frameView{}, false
	}
	t, err := (&packet.IP{Proto: v.proto, Payload: frame[v.l4:v.last]}).TCP()
	return frameView{v, t}, err == nil
}

// end returns the offset of the end of the TCP header.
func (v frameView) end() int { return v.l4 + len(v.TCP) }

// size returns the length of the payload.
func (v frameView) size() int { return v.last - v.end() }

// addresses returns the source and destination.
func (v packetView) addresses() (src, dst []byte) {
	if v.v6 {
		return v.frame[v.ip+8 : v.ip+24], v.frame[v.ip+24 : v.ip+40]
	}
	return v.frame[v.ip+12 : v.ip+16], v.frame[v.ip+16 : v.ip+20]
}

// key identifies the flow as seen from the sender or, if reverse, from the receiver.
func (v frameView) key(reverse bool) string {
	src, dst := v.addresses()
	sport, dport := v.TCP[0:2], v.TCP[2:4]
	if reverse {
		src, dst, sport, dport = dst, src, dport, sport
	}
	return string(src) + string(sport) + string(dst) + string(dport)
}

// payload returns the offset of the payload of TCP or UDP, or else of IP.
func (v packetView) payload() int {
	switch {
	case v.proto == unix.IPPROTO_UDP:
		return min(v.l4+8, v.last)
	case v.proto == unix.IPPROTO_TCP && v.last >= v.l4+20:
		return min(v.l4+int(v.frame[v.l4+12]>>4)*4, v.last)
	}
	return v.l4
}

// neighbour reports whether the packet is neighbour discovery, which boxes leave alone.
func (v packetView) neighbour() bool {
	return v.v6 && v.proto == unix.IPPROTO_ICMPV6 && v.l4 < v.last && v.frame[v.l4] >= 133 && v.frame[v.l4] <= 137
}

// checksum returns the offset of the transport's checksum, or 0.
func (v packetView) checksum() int {
	switch {
	case v.proto == unix.IPPROTO_TCP && v.last >= v.l4+20:
		return v.l4 + 16
	case v.proto == unix.IPPROTO_UDP && v.last >= v.l4+8:
		return v.l4 + 6
	}
	return 0
}

// mend sets the correct checksum of the transport.
func (v packetView) mend() {
	at := v.checksum()
	if at == 0 {
		return
	}
	binary.BigEndian.PutUint16(v.frame[at:], 0)
	pseudo := packet.PseudoSum(v.frame[v.ip:v.l4], v.proto, v.last-v.l4)
	whole := ^packet.Sum(v.frame[v.l4:v.last], pseudo)
	if whole == 0 && v.proto == unix.IPPROTO_UDP {
		whole = 0xffff
	}
	binary.BigEndian.PutUint16(v.frame[at:], whole)
}

// finished returns another frame with the headers of v up to the transport's, after setting its lengths and checksums.
func (v packetView) finished(frame []byte) []byte {
	v.frame, v.last = frame, len(frame)
	packet.SetPayloadLen(frame[v.ip:v.l4], v.last-v.l4)
	v.mend()
	return frame
}

// complete computes the checksum that a frame has left to the hardware. For a frame that must still be segmented (see
// [Config].NoOffload) it returns false and changes nothing.
func complete(frame []byte) bool {
	if frame[1] != unix.VIRTIO_NET_HDR_GSO_NONE {
		return false
	}
	if frame[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
		if v, ok := viewPacket(frame); ok {
			v.mend()
		}
	}
	clear(frame[:vnetHeaderLen])
	return true
}
