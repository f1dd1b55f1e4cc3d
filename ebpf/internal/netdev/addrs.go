package netdev

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

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

// Own is the device that has an address and the device below it, as in struct own of maps.h.
type Own struct{ Upper, Lower uint32 }

// nowhere is OWN_NOWHERE of maps.h: the programs of the device below see the packets of the address first, and cannot
// tell them from their own.
const nowhere = math.MaxUint32

// Stack describes devices that share the packets of another one.
type Stack struct {
	Own   map[int]Own  // by the index of the upper device
	Taken map[int]bool // lower devices that have no packets of their own
	// Tagged are lower devices whose packets with a priority tag belong to a VLAN device with id 0.
	Tagged map[int]bool
}

// StackOf finds the macvlan, ipvlan and VLAN devices whose parent is in the same namespace. If the parent is elsewhere,
// they are devices like any other.
func StackOf(links []netlink.Link) Stack {
	here := map[int]bool{}
	for _, l := range links {
		here[l.Attrs().Index] = true
	}
	s := Stack{Own: map[int]Own{}, Taken: map[int]bool{}, Tagged: map[int]bool{}}
	for _, l := range links {
		a := l.Attrs()
		if a.ParentIndex <= 0 || !here[a.ParentIndex] || a.NetNsID >= 0 {
			continue
		}
		switch d := l.(type) {
		case *netlink.Macvlan:
			s.Own[a.Index] = Own{Upper: uint32(a.Index), Lower: uint32(a.ParentIndex)}
			s.Taken[a.ParentIndex] = s.Taken[a.ParentIndex] || d.Mode == netlink.MACVLAN_MODE_PASSTHRU
		case *netlink.IPVlan:
			s.Own[a.Index] = Own{Upper: nowhere, Lower: uint32(a.ParentIndex)}
		case *netlink.Vlan:
			s.Tagged[a.ParentIndex] = s.Tagged[a.ParentIndex] || d.VlanId == 0
		}
	}
	return s
}

// Shares reports whether a device has the MAC of the one below it, so that its packets cannot be told apart there.
func (s Stack) Shares(index int) bool { return s.Own[index].Upper == nowhere }
