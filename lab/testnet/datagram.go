package testnet

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// isDatagram tells whether a frame (virtio header, Ethernet, IP, UDP) is a UDP
// datagram from or to a port. Fragments are not: only the first has ports.
func isDatagram(frame []byte, port uint16) bool {
	if len(frame) < vnetHeaderLen+14 {
		return false
	}
	ip := frame[vnetHeaderLen+14:]
	var udp []byte
	switch binary.BigEndian.Uint16(frame[vnetHeaderLen+12:]) {
	case unix.ETH_P_IP:
		if len(ip) < 20 || ip[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return false
		}
		header := int(ip[0]&0xf) * 4
		if len(ip) < header {
			return false
		}
		udp = ip[header:]
	case unix.ETH_P_IPV6:
		if len(ip) < 40 || ip[6] != unix.IPPROTO_UDP {
			return false
		}
		udp = ip[40:]
	}
	return len(udp) >= 8 && (binary.BigEndian.Uint16(udp) == port || binary.BigEndian.Uint16(udp[2:]) == port)
}
