package rdmacm

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
)

// Sockaddr is an address in the kernel's format. The zero value is no address. Scope is the interface of a link-local
// address.
type Sockaddr struct {
	netip.AddrPort

	Scope uint32
}

const (
	// SockaddrSize is the size of the storage of an address (struct __kernel_sockaddr_storage).
	SockaddrSize = 128

	sockaddrInLen  = 16
	sockaddrIn6Len = 28
)

// SockaddrOf converts an address, resolving its zone to an interface.
func SockaddrOf(a netip.AddrPort) (Sockaddr, error) {
	zone := a.Addr().Zone()
	if zone == "" {
		return Sockaddr{AddrPort: a}, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return Sockaddr{AddrPort: a, Scope: uint32(n)}, nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return Sockaddr{}, fmt.Errorf("zone of %v: %w", a, err)
	}
	return Sockaddr{AddrPort: a, Scope: uint32(i.Index)}, nil
}

// Size returns how many bytes of the storage are used.
func (a Sockaddr) Size() uint16 {
	switch {
	case !a.IsValid():
		return 0
	case a.Addr().Unmap().Is4():
		return sockaddrInLen
	default:
		return sockaddrIn6Len
	}
}

// Append appends the storage.
func (a Sockaddr) Append(b []byte) []byte {
	n := len(b)
	b = pad(b, SockaddrSize)
	s := b[n:]
	ip := a.Addr().Unmap()
	switch {
	case !a.IsValid():
	case ip.Is4():
		native.PutUint16(s, syscall.AF_INET)
		binary.BigEndian.PutUint16(s[2:], a.Port())
		copy(s[4:], ip.AsSlice())
	default:
		native.PutUint16(s, syscall.AF_INET6)
		binary.BigEndian.PutUint16(s[2:], a.Port())
		copy(s[8:], ip.AsSlice())
		native.PutUint32(s[24:], a.Scope)
	}
	return b
}
