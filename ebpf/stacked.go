package ebpf

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// syncOwn makes the map of own addresses match those of the namespace. Nothing else writes to the map.
func (d *Datapath) syncOwn(s netdev.Stack, addrs []netlink.Addr) error {
	want := map[smcgwPeerKey]smcgwOwn{}
	for _, a := range addrs {
		if k, ok := ownKey(a.IP); ok {
			o := s.Own[a.LinkIndex]
			want[k] = smcgwOwn{Upper: o.Upper, Lower: o.Lower}
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

// noRoom reports whether err says that a map is full, and logs that once per map. Connections of what has no room there
// are native; the others go on.
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
