package testnet

import "github.com/smcgw/smcgw/packet"

// isDatagram reports whether a frame (virtio header, Ethernet, IP, UDP) is a UDP datagram from or to a port. Fragments
// are not, since only the first has ports.
func isDatagram(frame []byte, port uint16) bool {
	p, ok := ipOf(frame)
	if !ok || p.Proto != packet.ProtoUDP || len(p.Payload) < packet.UDPLen {
		return false
	}
	u := packet.UDP(p.Payload)
	return u.SrcPort() == port || u.DstPort() == port
}
