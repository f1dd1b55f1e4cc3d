package cm

import "net/netip"

// grhSize is the size of the GRH area before a datagram in the receive buffer of queue pair 1.
const grhSize = 40

// parseGRH returns the addresses in the first 40 bytes of a UD receive buffer: on RoCEv2 an IPv6 header, or 20
// undefined bytes and an IPv4 header.
func parseGRH(b []byte) (src, dst netip.Addr, ok bool) {
	if len(b) < grhSize {
		return src, dst, false
	}
	if b[0]>>4 != 6 {
		if b[20] != 0x45 {
			return src, dst, false
		}
		return netip.AddrFrom4([4]byte(b[32:36])), netip.AddrFrom4([4]byte(b[36:40])), true
	}
	src, dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	return src.Unmap(), dst.Unmap(), true
}
