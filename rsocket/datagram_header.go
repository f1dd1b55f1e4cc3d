package rsocket

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// DatagramQKey is the Q_Key of all datagram rsockets (RDMA_UDP_QKEY).
const DatagramQKey = 0x01234567

// Sizes of ds_header.
const (
	DatagramHeader4Len = 8
	DatagramHeader6Len = 24
)

// IP versions as the headers of datagram rsockets encode them.
const (
	ipv4 = 4
	ipv6 = 6
)

// DatagramHeader is ds_header, which precedes the payload of every datagram on a UD queue pair. It names the sending
// socket, which queue pair numbers and GIDs do not. Integers are big-endian:
//
//	0  version: 4 or 6     1  length of the header: 8 or 24     2  source port (2)
//	4  IPv4: address (4)
//	4  IPv6: flow information (4), zero when we send it, not looked at when we receive it     8  address (16)
type DatagramHeader struct {
	// Source is the sender's socket address. Zones are not sent.
	Source netip.AddrPort
}

// Append appends the header to b.
func (h DatagramHeader) Append(b []byte) []byte {
	addr, port := h.Source.Addr(), h.Source.Port()
	if addr.Is4() {
		a := addr.As4()
		b = append(b, ipv4, DatagramHeader4Len, byte(port>>8), byte(port))
		return append(b, a[:]...)
	}
	a := addr.As16()
	b = append(b, ipv6, DatagramHeader6Len, byte(port>>8), byte(port), 0, 0, 0, 0)
	return append(b, a[:]...)
}

// ParseDatagramHeader parses the header at the beginning of b; payload is the rest of b, not a copy. The error wraps
// [ErrDatagramHeader].
func ParseDatagramHeader(b []byte) (h DatagramHeader, payload []byte, err error) {
	if len(b) < DatagramHeader4Len {
		return h, nil, fmt.Errorf("%d bytes: %w", len(b), ErrDatagramHeader)
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch {
	case b[0] == ipv4 && b[1] == DatagramHeader4Len:
		h.Source = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
		return h, b[DatagramHeader4Len:], nil
	case b[0] == ipv6 && b[1] == DatagramHeader6Len && len(b) >= DatagramHeader6Len:
		h.Source = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port)
		return h, b[DatagramHeader6Len:], nil
	}
	return h, nil, fmt.Errorf("version %d, length %d in %d bytes: %w", b[0], b[1], len(b), ErrDatagramHeader)
}
