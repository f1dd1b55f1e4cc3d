package verbs

import "net/netip"

// GID is the address of a port (union ibv_gid). On RoCEv2 it is an IP address,
// IPv4 ones mapped (::ffff:a.b.c.d).
type GID [16]byte

// GIDOf returns the GID of an IP address. The zone is dropped.
func GIDOf(a netip.Addr) GID { return a.As16() }

// Addr returns the IP address, IPv4 unmapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String returns the GID as the RDMA tools print it, as an IPv6 address.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// MarshalText encodes GIDs as their text in JSON.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }
