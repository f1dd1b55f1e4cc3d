package netdev

import (
	"net"

	"github.com/vishvananda/netlink"
)

// OneWay reports whether a device is a tunnel without a fixed far end, such as that of a server behind an IPVS
// director: it accepts packets from anywhere, but must be told the destination of each packet that it sends. An ipvlan
// device of mode l3s is one-way, too: programs see what it sends, but not what it receives, which comes from the
// network layer.
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

// IPsec reports whether the policies of a device, rather than those of addresses, decide what is encrypted on it.
func IPsec(l netlink.Link) bool {
	switch l.Type() {
	case "xfrm", "vti", "vti6":
		return true
	}
	return false
}

func unset(ip net.IP) bool { return len(ip) == 0 || ip.IsUnspecified() }
