package ebpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Tuple identifies a TCP connection as seen from the local application, on either host: Local is the address of the
// application on this host. IPv4 is always unmapped.
type Tuple struct {
	Local, Remote netip.AddrPort
}

// String returns "local -> remote".
func (t Tuple) String() string { return fmt.Sprintf("%v -> %v", t.Local, t.Remote) }

// Family numbers of the maps. IPv4 addresses take the first four of the sixteen bytes, so a v4-mapped socket and an
// IPv4 packet have the same key.
const (
	family4 = 4
	family6 = 6
)

// addr16 returns an address in the form that the maps hold, and its family.
func addr16(a netip.Addr) (b [16]byte, family uint8) {
	a = a.Unmap()
	if a.Is4() {
		v4 := a.As4()
		copy(b[:], v4[:])
		return b, family4
	}
	return a.As16(), family6
}

// addrFrom is the inverse of addr16.
func addrFrom(b [16]byte, family uint8) netip.Addr {
	if family == family4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// wirePort returns a port in network byte order, as the programs find it in headers, in a field that Go sees as a
// native integer.
func wirePort(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}
