package ebpf

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/listing"
	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// Addrs returns the addresses of the devices that carry offers, and those of services
// on the loopback device, which come by these: what a peer can reach and a socket can be
// bound to now.
func (d *Datapath) Addrs() ([]netip.Addr, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	links, addrs, err := d.linksAndAddrs()
	if err != nil {
		return nil, err
	}
	offers, err := netdev.Offering(d.nl, links, addrs, d.cfg.Devices, d.inForce.Load().Carries)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
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
	return out, nil
}

// linksAndAddrs lists the devices of the namespace and their addresses.
func (d *Datapath) linksAndAddrs() ([]netlink.Link, []netlink.Addr, error) {
	links, err := listing.Whole(d.nl.LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("links: %w", err)
	}
	addrs, err := listing.Whole(func() ([]netlink.Addr, error) { return d.nl.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return nil, nil, fmt.Errorf("addresses: %w", err)
	}
	return links, addrs, nil
}
