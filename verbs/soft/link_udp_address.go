package soft

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Socket addresses and control messages in the kernel's memory format: host byte order except for ports and addresses.

// putAddress writes a destination and returns its length. It needs no zone, see bindAddress.
func putAddress(b *[unix.SizeofSockaddrInet6]byte, to netip.AddrPort) uint32 {
	binary.BigEndian.PutUint16(b[2:], to.Port())
	if a := to.Addr(); a.Is4() {
		binary.NativeEndian.PutUint16(b[:], unix.AF_INET)
		a4 := a.As4()
		copy(b[4:], a4[:])
		clear(b[8:unix.SizeofSockaddrInet4])
		return unix.SizeofSockaddrInet4
	}
	binary.NativeEndian.PutUint16(b[:], unix.AF_INET6)
	clear(b[4:8]) // flow label
	a16 := to.Addr().As16()
	copy(b[8:], a16[:])
	clear(b[24:]) // zone
	return unix.SizeofSockaddrInet6
}

// parseAddress parses a source address without its zone; an invalid one is the zero value.
func parseAddress(b []byte) netip.AddrPort {
	if len(b) < unix.SizeofSockaddrInet4 {
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case unix.AF_INET6:
		if len(b) >= unix.SizeofSockaddrInet6 {
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), port)
		}
	}
	return netip.AddrPort{}
}

// controlSize is room for all control messages that we send or receive at a time: two integers.
const controlSize = 2 * (unix.SizeofCmsghdr + 8)

// appendControl appends a control message with an integer of 2 or 4 bytes.
func appendControl(b []byte, level, kind uint32, size int, value uint32) []byte {
	if unix.SizeofCmsghdr == 16 {
		b = binary.NativeEndian.AppendUint64(b, uint64(unix.SizeofCmsghdr+size))
	} else {
		b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofCmsghdr+size))
	}
	b = binary.NativeEndian.AppendUint32(b, level)
	b = binary.NativeEndian.AppendUint32(b, kind)
	end := len(b) + unix.CmsgSpace(size) - unix.SizeofCmsghdr
	if size == 2 {
		b = binary.NativeEndian.AppendUint16(b, uint16(value))
	} else {
		b = binary.NativeEndian.AppendUint32(b, value)
	}
	for len(b) < end {
		b = append(b, 0)
	}
	return b
}

// ECN field of the type of service or traffic class (RFC 3168).
const (
	ecnMask = 3
	ecnECT0 = 2
	ecnCE   = 3
)

// parseControl parses the control messages of a message: the size of the datagrams that the kernel merged (0: it did
// not), and whether they are marked.
func parseControl(b []byte) (size int, ce bool) {
	for len(b) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(b)
		if err != nil {
			return size, ce
		}
		switch {
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			size = int(int32(binary.NativeEndian.Uint32(data)))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS && len(data) >= 1:
			ce = data[0]&ecnMask == ecnCE
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && len(data) >= 4:
			ce = binary.NativeEndian.Uint32(data)&ecnMask == ecnCE
		}
		b = rest
	}
	return size, ce
}
