package netdev

import "github.com/vishvananda/netlink"

// OwnPrefix is the prefix of the names of gateways' devices, none of which gets wire programs.
const OwnPrefix = "smcgw-"

// The lengths of link headers of Ethernet-like devices, and of IPoIB.
const (
	EtherLen = 14
	IPoIBLen = 24
)

// Header returns the length of the link header that programs see on a device, or false if they cannot parse it.
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

// IPoIB reports whether a device is an IPoIB device.
func IPoIB(l netlink.Link) bool {
	header, _ := Header(l.Attrs().EncapType)
	return header == IPoIBLen
}
