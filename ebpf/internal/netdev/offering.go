package netdev

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/listing"
)

// Offering returns the names of the devices that carry offers: those that are named, else
// those of default routes, and of routes to peers of the policy that have an address. One
// of many to containers, which are routed to without an address, does not count.
func Offering(nl *netlink.Handle, links []netlink.Link, addrs []netlink.Addr, named []string, carries func(netip.Prefix) bool) (map[string]bool, error) {
	names := map[string]bool{}
	for _, n := range named {
		names[n] = true
	}
	if len(named) > 0 {
		return names, nil
	}
	byIndex := map[int]string{}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagLoopback == 0 && !strings.HasPrefix(l.Attrs().Name, OwnPrefix) {
			byIndex[l.Attrs().Index] = l.Attrs().Name
		}
	}
	for _, f := range Families() {
		addressed := withAddress(addrs, f)
		routes, err := listing.Whole(func() ([]netlink.Route, error) {
			return nl.RouteListFiltered(f, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("routes: %w", err)
		}
		for _, r := range routes {
			to := destination(r, f)
			if to.Addr().IsLinkLocalUnicast() || to.Addr().IsMulticast() || to.Bits() > 0 && !carries(to) {
				continue
			}
			for _, i := range routeLinks(r) {
				if name, ok := byIndex[i]; ok && (to.Bits() == 0 || addressed[i]) {
					names[name] = true
				}
			}
		}
	}
	return names, nil
}

// withAddress returns the indexes of the devices with an address of a family that has a
// meaning beyond the link.
func withAddress(addrs []netlink.Addr, family int) map[int]bool {
	found := map[int]bool{}
	for _, a := range addrs {
		if a.IP.IsGlobalUnicast() && (a.IP.To4() != nil) == (family == unix.AF_INET) {
			found[a.LinkIndex] = true
		}
	}
	return found
}

// destination is that of a route of a family.
func destination(r netlink.Route, family int) netip.Prefix {
	if r.Dst != nil {
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			ones, bits := r.Dst.Mask.Size()
			if a = a.Unmap(); a.Is4() {
				ones -= bits - 32
			}
			return netip.PrefixFrom(a, ones)
		}
	}
	if family == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// Families are the address families this kernel has.
func Families() []int {
	if HasIPv6() {
		return []int{unix.AF_INET, unix.AF_INET6}
	}
	return []int{unix.AF_INET}
}

// routeLinks returns the devices of a route.
func routeLinks(r netlink.Route) (out []int) {
	if r.LinkIndex > 0 {
		out = append(out, r.LinkIndex)
	}
	for _, hop := range r.MultiPath {
		out = append(out, hop.LinkIndex)
	}
	return out
}
