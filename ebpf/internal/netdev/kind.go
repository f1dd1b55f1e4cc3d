package netdev

import (
	"net"
	"strings"

	"github.com/vishvananda/netlink"
)

// OwnPrefix marks the devices of gateways; none gets wire programs.
const OwnPrefix = "smcgw-"

// The lengths of link headers of Ethernet-like devices, and of IPoIB.
const (
	EtherLen = 14
	IPoIBLen = 24
)

// Header returns the length of the link header that the programs see on a
// device, and false for devices they cannot parse.
func Header(encap string) (int, bool) {
	switch encap {
	case "ether":
		return EtherLen, true
	case "infiniband":
		return IPoIBLen, true
	case "none", "ppp", "ipip", "tunnel6", "sit", "gre", "gre6":
		return 0, true
	default:
		return 0, false
	}
}

// IPoIB reports whether a device is one of IPoIB.
func IPoIB(l netlink.Link) bool {
	header, _ := Header(l.Attrs().EncapType)
	return header == IPoIBLen
}

// Wanted reports whether a device gets our programs. Ports of a bridge or bond
// do not: their master sees the same packets. Ports of a VRF do: it sees them
// too late for routing by the port. The device below a macvlan passthru has no
// packets of its own, nor has an ifb: a queueing discipline sends there what another
// device's programs have passed.
func Wanted(l netlink.Link, masters map[int]string) bool {
	a := l.Attrs()
	if a.Flags&net.FlagLoopback != 0 || strings.HasPrefix(a.Name, OwnPrefix) || l.Type() == "vrf" || l.Type() == "ifb" {
		return false
	}
	if kind, ok := masters[a.MasterIndex]; ok && kind != "vrf" {
		return false
	}
	_, ok := Header(a.EncapType)
	return ok
}
