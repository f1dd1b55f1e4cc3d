package rsocket

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Sizes of ds_udp_header.
const (
	ResolveHeader4Len = 16
	ResolveHeader6Len = 28
)

// resolveTag begins every ds_udp_header (DS_UDP_TAG). It is the same in both byte orders.
const resolveTag = 0x55555555

// qpnMask selects the 24 bits of a queue pair number; the other bits of the field are ignored.
const qpnMask = 0xffffff

// flagProbes is the flag of ResolveHeader.Probes.
const flagProbes = 1

// ResolveOp is the purpose of a datagram with a ds_udp_header.
type ResolveOp uint8

// The operations.
const (
	// ResolveData asks for the receiver's queue pair and carries a datagram of the sender (RS_OP_DATA).
	ResolveData ResolveOp = 0
	// ResolveCtrl answers with the sender's queue pair and carries no datagram (RS_OP_CTRL).
	ResolveCtrl ResolveOp = 7
)

// String names the operation.
func (o ResolveOp) String() string {
	switch o {
	case ResolveData:
		return "DATA"
	case ResolveCtrl:
		return "CTRL"
	default:
		return fmt.Sprintf("op %d", uint8(o))
	}
}

// ResolveHeader is ds_udp_header, which precedes everything that datagram rsockets send to each other's UDP ports.
// Integers are big-endian:
//
//	0  tag 0x55555555 (4)     4  version: 4 or 6     5  operation     6  length of the header: 16 or 28     7  flags
//	8  queue pair, lower 24 bits (4)     12  source address of the queue pair, IPv4 (4) or IPv6 (16)
//
// The trap: a stock rsocket copies an IPv6 address from four bytes too early, so the field holds its flow information
// and the first twelve bytes of the address. It never reads the field either but takes the source address of the UDP
// datagram, and so do we. We send the correct address.
type ResolveHeader struct {
	Op ResolveOp
	// QPN is the sender's queue pair; 0 means that it has none, which stock rsockets do not understand.
	QPN uint32
	// Probes means that the sender answers probes on its queue pair (flag 1). Stock rsockets send zero flags and ignore
	// them.
	Probes bool
	// Addr is the content of the address field. Do not send to it.
	Addr netip.Addr
}

// Append appends the header to b.
func (h ResolveHeader) Append(b []byte) []byte {
	version, length := byte(ipv6), byte(ResolveHeader6Len)
	if h.Addr.Is4() {
		version, length = ipv4, ResolveHeader4Len
	}
	b = binary.BigEndian.AppendUint32(b, resolveTag)
	flags := byte(0)
	if h.Probes {
		flags = flagProbes
	}
	b = append(b, version, byte(h.Op), length, flags)
	b = binary.BigEndian.AppendUint32(b, h.QPN&qpnMask)
	if h.Addr.Is4() {
		a := h.Addr.As4()
		return append(b, a[:]...)
	}
	a := h.Addr.As16()
	return append(b, a[:]...)
}

// ParseResolveHeader parses the header at the beginning of b; payload is the rest of b. The error wraps
// [ErrResolveHeader]: b is not a message between rsockets, so most likely a plain datagram.
func ParseResolveHeader(b []byte) (h ResolveHeader, payload []byte, err error) {
	if len(b) < ResolveHeader4Len || binary.BigEndian.Uint32(b) != resolveTag {
		return h, nil, ErrResolveHeader // not wrapped: every plain datagram ends here
	}
	op := ResolveOp(b[5])
	if op != ResolveData && op != ResolveCtrl {
		return h, nil, fmt.Errorf("%v: %w", op, ErrResolveHeader)
	}
	h = ResolveHeader{Op: op, QPN: binary.BigEndian.Uint32(b[8:]) & qpnMask, Probes: b[7]&flagProbes != 0}
	switch {
	case b[4] == ipv4 && b[6] == ResolveHeader4Len:
		h.Addr = netip.AddrFrom4([4]byte(b[12:16]))
		return h, b[ResolveHeader4Len:], nil
	case b[4] == ipv6 && b[6] == ResolveHeader6Len && len(b) >= ResolveHeader6Len:
		h.Addr = netip.AddrFrom16([16]byte(b[12:28]))
		return h, b[ResolveHeader6Len:], nil
	}
	return ResolveHeader{}, nil, fmt.Errorf("version %d, length %d in %d bytes: %w", b[4], b[6], len(b), ErrResolveHeader)
}
