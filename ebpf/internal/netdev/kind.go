package netdev

import "github.com/vishvananda/netlink"

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
