package netdev

import (
	"net"

	"github.com/vishvananda/netlink"
)

// OneWay reports whether a device is a tunnel without a far end of its own: it takes what
// comes from anywhere, as that of a server behind an IPVS director does, and has to be told
// of each packet where it goes. An ipvlan device of mode l3s sends what programs see, and
// takes what they do not: it gets that from the network layer.
func OneWay(l netlink.Link) bool {
	switch t := l.(type) {
	case *netlink.Iptun:
		return t.FlowBased || unset(t.Remote)
	case *netlink.Ip6tnl:
		return t.FlowBased || unset(t.Remote)
	case *netlink.Sittun:
		return unset(t.Remote)
	case *netlink.Gretun:
		return t.FlowBased || unset(t.Remote)
	case *netlink.IPVlan:
		return t.Mode == netlink.IPVLAN_MODE_L3S
	}
	return false
}

// IPsec reports whether the policies of a device, and not those of addresses, decide what is
// encrypted on it.
func IPsec(l netlink.Link) bool {
	switch l.Type() {
	case "xfrm", "vti", "vti6":
		return true
	}
	return false
}

func unset(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
