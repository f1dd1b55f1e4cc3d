package netstack

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/smcgw/smcgw/packet"
)

// Tuple identifies a connection as seen from the local application: on the client's host Local is the client
// application, on the server's host it is the server application. IPv4 addresses are never v4-mapped.
type Tuple struct {
	Local, Remote netip.AddrPort
}

// String returns "local>remote".
func (t Tuple) String() string { return fmt.Sprintf("%v>%v", t.Local, t.Remote) }

// valid reports whether both ends are complete and of one family.
func (t Tuple) valid() bool {
	l, r := t.Local.Addr(), t.Remote.Addr()
	return l.IsValid() && r.IsValid() && l.Is4() == r.Is4() && t.Local.Port() != 0 && t.Remote.Port() != 0
}

// tupleKey is a Tuple as plain memory, because it is hashed once per packet.
type tupleKey struct {
	local, remote [16]byte
	lport, rport  uint16
	v6            bool
}

func (k tupleKey) tuple() Tuple {
	return Tuple{
		Local:  netip.AddrPortFrom(netip.AddrFrom16(k.local).Unmap(), k.lport),
		Remote: netip.AddrPortFrom(netip.AddrFrom16(k.remote).Unmap(), k.rport),
	}
}

// outboundKey returns the key of a packet that leaves: its source is local.
func outboundKey(ip, tcp []byte) tupleKey {
	k := tupleKey{
		lport: packet.TCP(tcp).SrcPort(),
		rport: packet.TCP(tcp).DstPort(),
	}
	if ip[0]>>4 == 6 {
		k.v6 = true
		copy(k.local[:], ip[8:24])
		copy(k.remote[:], ip[24:40])
		return k
	}
	k.local, k.remote = mapped(ip[12:16]), mapped(ip[16:20])
	return k
}

// inboundKey returns the key of a packet that arrives: its destination is local.
func inboundKey(ip, tcp []byte) tupleKey {
	k := outboundKey(ip, tcp)
	k.local, k.remote = k.remote, k.local
	k.lport, k.rport = k.rport, k.lport
	return k
}

func mapped(v4 []byte) (a [16]byte) {
	a[10], a[11] = 0xff, 0xff
	copy(a[12:], v4)
	return a
}

// fullAddress converts a to gVisor's address type, and returns its network protocol.
func fullAddress(a netip.AddrPort) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	proto := header.IPv4ProtocolNumber
	if a.Addr().Is6() {
		proto = header.IPv6ProtocolNumber
	}
	return tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFromSlice(a.Addr().AsSlice()), Port: a.Port()}, proto
}

// keyOf returns the key of a tuple.
func keyOf(t Tuple) tupleKey {
	return tupleKey{
		local: t.Local.Addr().As16(), remote: t.Remote.Addr().As16(),
		lport: t.Local.Port(), rport: t.Remote.Port(),
		v6: t.Local.Addr().Is6() && !t.Local.Addr().Is4In6(),
	}
}
