package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"math"

	bpf "github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/listing"
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

// syncOwn makes the map of own addresses equal to the namespace's.
func (d *Datapath) syncOwn(s stack) error {
	addrs, err := listing.Whole(func() ([]netlink.Addr, error) { return d.nl.AddrList(nil, unix.AF_UNSPEC) })
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	want := map[smcgwPeerKey]smcgwOwn{}
	for _, a := range addrs {
		if k, ok := ownKey(a.IP); ok {
			want[k] = s.own[a.LinkIndex]
		}
	}
	have := map[smcgwPeerKey]smcgwOwn{}
	var k smcgwPeerKey
	var v smcgwOwn
	it := d.objs.Own.Iterate()
	for it.Next(&k, &v) {
		have[k] = v
	}
	errs := []error{it.Err()}
	if maps.Equal(want, have) {
		return errors.Join(errs...)
	}
	for k, v := range want {
		if old, ok := have[k]; !ok || old != v {
			errs = append(errs, d.objs.Own.Put(k, v))
		}
	}
	for k := range have {
		if _, ok := want[k]; ok {
			continue
		}
		if err := d.objs.Own.Delete(k); err != nil && !errors.Is(err, bpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
