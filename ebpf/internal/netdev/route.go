package netdev

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Leads reports whether there is a route from one address to another through a device, for packets with a mark. It
// requires a route in a table, since the kernel would make one up for a socket that is bound to the device.
func Leads(nl *netlink.Handle, from, to netip.Addr, mark, device uint32) bool {
	r, err := routeOf(nl, from, to, netlink.RouteGetOptions{Mark: mark, OifIndex: int(device), FIBMatch: true})
	if err != nil {
		return !noRoute(err)
	}
	return slices.Contains(routeLinks(r), int(device))
}

// RouteBy returns the index of the device through which the kernel routes packets with a mark from one address to
// another, for a socket that is bound to the device bound or, if 0, to none.
func RouteBy(nl *netlink.Handle, from, to netip.Addr, mark, bound uint32) (uint32, error) {
	r, err := routeOf(nl, from, to, netlink.RouteGetOptions{Mark: mark, OifIndex: int(bound)})
	return uint32(r.LinkIndex), err
}

// noRoute reports whether err means that the kernel has no route, rather than that the lookup failed.
func noRoute(err error) bool {
	return slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.ENODEV, unix.ENETDOWN},
		func(e error) bool { return errors.Is(err, e) })
}

// routeOf looks up a route in the kernel.
func routeOf(nl *netlink.Handle, from, to netip.Addr, o netlink.RouteGetOptions) (netlink.Route, error) {
	o.SrcAddr = from.AsSlice()
	routes, err := nl.RouteGetWithOptions(to.AsSlice(), &o)
	if err == nil && len(routes) == 0 {
		err = unix.ENETUNREACH
	}
	if err != nil {
		return netlink.Route{}, fmt.Errorf("route from %v to %v: %w", from, to, err)
	}
	return routes[0], nil
}
