package ebpf

import (
	"net/netip"

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
	offers, err := netdev.Offering(d.nl, links, addrs, d.cfg.Devices, d.inForce.Load().Carries)
	if err != nil {
		return nil, err
	}
	return netdev.Reachable(links, addrs, offers), nil
}
