package cm

import (
	"errors"
	"fmt"
	"net/netip"
)

// PortSpace is a space of port numbers (enum rdma_ucm_port_space, same numbers).
type PortSpace uint16

// The port spaces.
const (
	PortSpaceIPoIB PortSpace = 0x0002
	PortSpaceTCP   PortSpace = 0x0106 // connections; stream rsockets use it
	PortSpaceUDP   PortSpace = 0x0111 // datagrams
	PortSpaceIB    PortSpace = 0x013f
)

// ServiceID identifies what a peer listens on (IBTA vol. 1, annex A3).
type ServiceID uint64

// ServiceOf returns the service of a port (annex A11): the port space, then the port.
func ServiceOf(ps PortSpace, port uint16) ServiceID {
	return ServiceID(ps)<<16 | ServiceID(port)
}

// PortSpace returns the port space of a service made by ServiceOf.
func (s ServiceID) PortSpace() PortSpace { return PortSpace(s >> 16) }

// Port returns the port of a service made by ServiceOf.
func (s ServiceID) Port() uint16 { return uint16(s) }

// AddrHeaderSize is the size of the AddrHeader in a request's private data.
const AddrHeaderSize = 36

// AddrHeader begins the private data of REQ and SIDR_REQ and carries the IP addresses of the connection (annex A11;
// struct cma_hdr of the kernel):
//
//	 0  version 0
//	 1  IP version in the high half: 4 or 6
//	 2  source port
//	 4  source address, 16 bytes; an IPv4 address is in the last four
//	20  destination address, likewise
//
// The destination port is in the service id.
type AddrHeader struct {
	Source      netip.AddrPort
	Destination netip.Addr
}

// errAddrHeader is private data without an AddrHeader.
var errAddrHeader = errors.New("malformed address header")

// Append appends the 36 bytes. Both addresses must have the same version; zones are dropped.
func (h *AddrHeader) Append(b []byte) []byte {
	src := h.Source.Addr().Unmap()
	version := byte(6)
	if src.Is4() {
		version = 4
	}
	b = append(b, 0, version<<4, byte(h.Source.Port()>>8), byte(h.Source.Port()))
	return appendAddr(appendAddr(b, src), h.Destination.Unmap())
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		b = append(b, make([]byte, 12)...)
	}
	return append(b, a.AsSlice()...)
}

// Parse decodes the header and returns the private data that follows it.
func (h *AddrHeader) Parse(b []byte) (rest []byte, err error) {
	if len(b) < AddrHeaderSize || b[0] != 0 {
		return nil, errAddrHeader
	}
	version := b[1] >> 4
	src, ok1 := addrOf(version, [16]byte(b[4:20]))
	dst, ok2 := addrOf(version, [16]byte(b[20:36]))
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("ip version %d: %w", version, errAddrHeader)
	}
	*h = AddrHeader{Source: netip.AddrPortFrom(src, get16(b[2:])), Destination: dst}
	return b[AddrHeaderSize:], nil
}

func addrOf(version byte, b [16]byte) (netip.Addr, bool) {
	switch version {
	case 4:
		// The first twelve bytes are ignored.
		return netip.AddrFrom4([4]byte(b[12:])), true
	case 6:
		a := netip.AddrFrom16(b)
		return a, !a.Is4In6()
	}
	return netip.Addr{}, false
}
