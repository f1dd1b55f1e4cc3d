package netdev

import (
	"math"

	"github.com/vishvananda/netlink"
)

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
