package rdmacm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/smcgw/smcgw/verbs"
)

// sockaddr is an address as the kernel takes it. The zero value is no address. scope is the interface of a link-local address.
type sockaddr struct {
	netip.AddrPort

	scope uint32
}

const (
	sockaddrSize   = 128 // struct __kernel_sockaddr_storage
	sockaddrInLen  = 16
	sockaddrIn6Len = 28
	sockaddrIBLen  = 48

	familyIB = 27 // AF_IB
)

// size is how many bytes of the storage are the address.
func (a sockaddr) size() uint16 {
	switch {
	case !a.IsValid():
		return 0
	case a.Addr().Unmap().Is4():
		return sockaddrInLen
	default:
		return sockaddrIn6Len
	}
}

// append appends the storage.
func (a sockaddr) append(b []byte) []byte {
	n := len(b)
	b = pad(b, sockaddrSize)
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
		native.PutUint32(s[24:], a.scope)
	}
	return b
}

// parseSockaddr reads a storage with an IP address. A storage without address is the zero value.
func parseSockaddr(b []byte) (netip.AddrPort, error) {
	if len(b) < sockaddrSize {
		return netip.AddrPort{}, fmt.Errorf("address of %d bytes: %w", len(b), ErrMalformed)
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch family := native.Uint16(b); family {
	case 0:
		return netip.AddrPort{}, nil
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port), nil
	case syscall.AF_INET6:
		ip := netip.AddrFrom16([16]byte(b[8:])).Unmap()
		if scope := native.Uint32(b[24:]); scope != 0 && ip.Is6() {
			ip = ip.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(ip, port), nil
	default:
		return netip.AddrPort{}, fmt.Errorf("address of family %d: %w", family, ErrMalformed)
	}
}

// parseSockaddrIB reads the GID of a storage with an address of InfiniBand (struct sockaddr_ib).
func parseSockaddrIB(b []byte) (verbs.GID, error) {
	if len(b) < sockaddrIBLen {
		return verbs.GID{}, fmt.Errorf("ib address of %d bytes: %w", len(b), ErrMalformed)
	}
	if family := native.Uint16(b); family != familyIB {
		return verbs.GID{}, fmt.Errorf("ib address of family %d: %w", family, ErrMalformed)
	}
	return verbs.GID(b[8:24]), nil
}
