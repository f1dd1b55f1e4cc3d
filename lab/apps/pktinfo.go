package apps

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// arrival parses from control messages to which address a datagram was sent, and the index of the device on which it
// arrived (ip(7) and ipv6(7), PKTINFO).
func arrival(oob []byte) (to netip.Addr, device int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return to, 0
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			device = int(binary.NativeEndian.Uint32(m.Data))
			to = netip.AddrFrom4([4]byte(m.Data[8:12]))
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			to = netip.AddrFrom16([16]byte(m.Data[:16])).Unmap()
			device = int(binary.NativeEndian.Uint32(m.Data[16:]))
		}
	}
	return to, device
}

// departure returns the control message that makes a datagram leave from an address.
func departure(from netip.Addr, conn *net.UDPConn) []byte {
	if a, ok := conn.LocalAddr().(*net.UDPAddr); ok && a.IP.To4() != nil {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
	}
	// IPv4 addresses are mapped.
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
}
