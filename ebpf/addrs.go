package ebpf

import (
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// Addrs returns the addresses that peers can reach and sockets can be bound to now: those of the devices that carry
// offers, and service addresses on the loopback device that are reached through these devices.
func (d *Datapath) Addrs() ([]netip.Addr, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	links, addrs, err := netdev.List(d.nl)
	if err != nil {
		return nil, err
	}
	offers, err := d.offers(links, addrs)
	if err != nil {
		return nil, err
	}
	return netdev.Reachable(links, addrs, offers), nil
}

// offers returns the names of the devices that carry offers.
func (d *Datapath) offers(links []netlink.Link, addrs []netlink.Addr) (map[string]bool, error) {
	policy := d.inForce.Load()
	return d.routes.Names(d.nl, links, addrs, d.cfg.Devices, policy, policy.Carries)
}
