package netdev

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// List returns the devices of the namespace and their addresses.
func List(nl *netlink.Handle) ([]netlink.Link, []netlink.Addr, error) {
	links, err := Whole(nl.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("links: %w", err)
	}
	addrs, err := Whole(func() ([]netlink.Addr, error) { return nl.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, nil, fmt.Errorf("addresses: %w", err)
	}
	return links, addrs, nil
}

// Reachable returns the addresses to which sockets can be bound now: those of the devices that carry offers, and of
// services on the loopback device.
func Reachable(links []netlink.Link, addrs []netlink.Addr, offers map[string]bool) (out []netip.Addr) {
	for _, l := range links {
		if !offers[l.Attrs().Name] && l.Attrs().Flags&net.FlagLoopback == 0 {
			continue
		}
		for i := range addrs {
			a, ok := netip.AddrFromSlice(addrs[i].IP)
			a = a.Unmap()
			if ok && addrs[i].LinkIndex == l.Attrs().Index && a.IsGlobalUnicast() && addrs[i].Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
				out = append(out, a)
			}
		}
	}
	return out
}
