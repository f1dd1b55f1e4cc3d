package ebpf

import (
	"net/netip"

	"github.com/vishvananda/netlink"

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
