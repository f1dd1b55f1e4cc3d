package ebpf

import (
	"errors"
	"math"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ownNowhere is OWN_NOWHERE of maps.h: the programs of the device below see the
// packets of the address first, and cannot tell them from its own.
const ownNowhere = math.MaxUint32

// stack is what is known of devices that share the packets of another one.
type stack struct {
	own   map[int]smcgwOwn // by the index of the upper device
	taken map[int]bool     // devices below that have no packets of their own
}

// stackOf looks for macvlan and ipvlan devices whose parent is in the same
// namespace. Elsewhere they are devices like any other.
func stackOf(links []netlink.Link) stack {
	here := map[int]bool{}
	for _, l := range links {
		here[l.Attrs().Index] = true
	}
	s := stack{own: map[int]smcgwOwn{}, taken: map[int]bool{}}
	for _, l := range links {
		a := l.Attrs()
		if a.ParentIndex <= 0 || !here[a.ParentIndex] || a.NetNsID >= 0 {
			continue
		}
		switch d := l.(type) {
		case *netlink.Macvlan:
			s.own[a.Index] = smcgwOwn{Upper: uint32(a.Index), Lower: uint32(a.ParentIndex)}
			s.taken[a.ParentIndex] = s.taken[a.ParentIndex] || d.Mode == netlink.MACVLAN_MODE_PASSTHRU
		case *netlink.IPVlan:
			s.own[a.Index] = smcgwOwn{Upper: ownNowhere, Lower: uint32(a.ParentIndex)}
		}
	}
	return s
}

// shares reports whether a device has the MAC of the one below it, so that its packets
// cannot be told apart there.
func (s stack) shares(index int) bool { return s.own[index].Upper == ownNowhere }

// syncOwn makes the map of own addresses equal to the namespace's. Nothing else writes
// there.
func (d *Datapath) syncOwn(s stack, addrs []netlink.Addr) error {
	want := map[smcgwPeerKey]smcgwOwn{}
	for _, a := range addrs {
		if k, ok := ownKey(a.IP); ok {
			want[k] = s.own[a.LinkIndex]
		}
	}
	var errs []error
	for k := range d.own { // first, to make room
		if _, ok := want[k]; ok {
			continue
		}
		if err := ignoreMissing(d.objs.Own.Delete(k)); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(d.own, k)
	}
	for k, v := range want {
		if old, ok := d.own[k]; ok && old == v {
			continue
		}
		switch err := d.objs.Own.Put(k, v); {
		case err == nil:
			d.own[k] = v
		case !d.noRoom("own addresses", err):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// noRoom reports whether an error is that of a full map, and tells it once a map. What has
// no room there is native: the rest of the host does not wait for it.
func (d *Datapath) noRoom(what string, err error) bool {
	if !errors.Is(err, unix.E2BIG) {
		return false
	}
	if !d.fullTold[what] {
		d.fullTold[what] = true
		d.log.Warn("more than the programs have room for: connections of the rest are native", "of", what)
	}
	return true
}
