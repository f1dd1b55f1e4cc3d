package ebpf

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// RouteDevice returns the interface index of the wire device through which this host reaches remote from its address
// local, or [ErrNoDevice] if our programs are not attached to that device.
func (d *Datapath) RouteDevice(local, remote netip.Addr) (int, error) {
	local, remote = local.Unmap(), remote.Unmap()
	if !local.IsValid() || !remote.IsValid() || local.Is4() != remote.Is4() {
		return 0, fmt.Errorf("route from %v to %v: invalid addresses", local, remote)
	}
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	routes, err := d.routeNL.RouteGetWithOptions(remote.AsSlice(), &netlink.RouteGetOptions{SrcAddr: local.AsSlice()})
	if err != nil {
		return 0, fmt.Errorf("route from %v to %v: %w", local, remote, err)
	}
	for _, r := range routes {
		if d.isAttached(r.LinkIndex) {
			return r.LinkIndex, nil
		}
	}
	return 0, fmt.Errorf("route from %v to %v: %w", local, remote, ErrNoDevice)
}
