package sysfs

import (
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
)

// Types of GIDs as the kernel writes them.
const (
	// RoCEv2 is the type whose packets are UDP.
	RoCEv2 = "RoCE v2"
	// IBorRoCEv1 is the type of InfiniBand and of RoCE's first version.
	IBorRoCEv1 = "IB/RoCE v1"
)

// GID is an entry of a port's GID table.
type GID struct {
	Index int `json:"index"`
	// GID is the address, with IPv4 addresses mapped.
	GID  netip.Addr `json:"gid"`
	Type string     `json:"type"`
	// Device is the network device that has the address; empty: none, or one in another network namespace.
	Device string `json:"netdev,omitempty"`
}

// Addr returns the GID as an IP address, with IPv4 addresses unmapped.
func (g *GID) Addr() netip.Addr { return g.GID.Unmap() }

// gids reads the table of the port at a directory, without its holes.
func gids(sys fs.FS, port string) []GID {
	list := []GID{}
	for _, n := range numbers(sys, path.Join(port, "gids"), maxGIDs-1) {
		index := strconv.Itoa(n)
		v, _ := text(sys, port, path.Join("gids", index))
		a, err := netip.ParseAddr(v)
		if err != nil || !a.Is6() || a.Zone() != "" || a.IsUnspecified() || isEmptyDefault(a) {
			continue // a hole
		}
		g := GID{Index: n, GID: a}
		g.Type, _ = text(sys, port, path.Join("gid_attrs/types", index))
		g.Device, _ = text(sys, port, path.Join("gid_attrs/ndevs", index))
		list = append(list, g)
	}
	return list
}

// isEmptyDefault reports a bare prefix of link-local addresses, which InfiniBand drivers report for an index without a
// GUID.
func isEmptyDefault(a netip.Addr) bool {
	return a == netip.AddrFrom16([16]byte{0xfe, 0x80})
}

// hasRoCEv2 reports whether the port has a GID of that type.
func (p *Port) hasRoCEv2() bool {
	return slices.ContainsFunc(p.GIDs, func(g GID) bool { return g.Type == RoCEv2 })
}
