package netdev

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

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

// Use is what a device of the host can be used for.
type Use struct {
	Programs bool // it gets our programs
	Tagged   bool // packets with a priority tag belong to another device
	// Why is the reason why no offer can leave on it, and what to name instead; empty if offers can.
	Why string
}

// UsesOf returns the use of each device by its index. infiniBand says that IPoIB may carry.
func UsesOf(links []netlink.Link, infiniBand bool) map[int]Use {
	stack, byIndex, uses := StackOf(links), map[int]netlink.Link{}, map[int]Use{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	for _, l := range links {
		a := l.Attrs()
		why := without(l, byIndex[a.MasterIndex])
		switch {
		case why != "":
		case stack.Taken[a.Index]:
			why = "has no packets of its own: name the macvlan device on it"
		case IPoIB(l) && !infiniBand:
			why = "is one of IPoIB: add ib to carriers"
		}
		use := Use{Programs: why == "", Tagged: stack.Tagged[a.Index], Why: why}
		switch {
		case why != "":
		case OneWay(l):
			use.Why = "is a tunnel without a far end, by which no answer comes: name another"
		case stack.Shares(a.Index):
			use.Why = "shares the address of the device below it: name that"
		}
		uses[a.Index] = use
	}
	return uses
}

// without returns the reason why a device gets no programs. Ports of a bridge or bond get none because their master
// sees the same packets. Ports of a VRF do get them, because the VRF sees packets too late for routing by the port. The
// device below a macvlan passthru has no packets of its own. Neither has an ifb: a queueing discipline sends packets
// there that the programs of another device have passed.
func without(l, master netlink.Link) string {
	a := l.Attrs()
	_, known := Header(a.EncapType)
	switch {
	case a.Flags&net.FlagLoopback != 0:
		return "is the loopback device: name another"
	case strings.HasPrefix(a.Name, OwnPrefix):
		return "is one of a gateway: name another"
	case l.Type() == "vrf":
		return "is a VRF: name its ports"
	case l.Type() == "ifb":
		return "holds back the packets of another device: name that"
	case master != nil && master.Type() == "openvswitch":
		return "is a port of Open vSwitch: name its bridge"
	case master != nil && master.Type() != "vrf":
		return fmt.Sprintf("is a port of %s: name that", master.Attrs().Name)
	case !known:
		return fmt.Sprintf("is of the kind %s, which carries no offers: name another", a.EncapType)
	}
	return ""
}

// Looked is the devices on which offers leave, and the reasons for those that should carry offers and do not.
type Looked struct{ Devices, Missing []string }

// LookedAt returns what became of the devices that should carry offers. named are those of the configuration; offering
// reports whether a device carries any.
func LookedAt(links []netlink.Link, uses map[int]Use, named []string, should map[string]bool, offering func(index int) bool) *Looked {
	looked, why := &Looked{}, map[string]string{}
	for _, l := range links {
		a := l.Attrs()
		if should[a.Name] && offering(a.Index) {
			looked.Devices = append(looked.Devices, a.Name)
		}
		if why[a.Name] = uses[a.Index].Why; why[a.Name] == "" {
			why[a.Name] = "could not be given programs: the log says why"
		}
	}
	if len(should) == 0 {
		looked.Missing = []string{"devices: no device has a default route or a route to a peer of a rule: name devices, or add a route"}
	}
	if len(named) == 0 && looked.Devices == nil {
		named = slices.Sorted(maps.Keys(should))
	}
	for _, name := range named {
		switch reason, found := why[name]; {
		case slices.Contains(looked.Devices, name):
		case found:
			looked.Missing = append(looked.Missing, fmt.Sprintf("devices: %s %s", name, reason))
		default:
			looked.Missing = append(looked.Missing, fmt.Sprintf("devices: there is no network device %s here: see ip link, and correct devices", name))
		}
	}
	return looked
}
