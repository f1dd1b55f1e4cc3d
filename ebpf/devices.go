package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// device is a network device to which our programs are attached.
type device struct {
	name  string
	value smcgwDevice
	up    bool        // packets can arrive on it
	legs  [2]LegWay   // of IPv4 and IPv6: "" if they are proved
	links []link.Link // ingress, egress
}

// newDevice returns a device about which nothing is known yet.
func newDevice(counting bool) *device {
	if counting {
		return new(device)
	}
	return &device{legs: [2]LegWay{LegUnproved, LegUnproved}}
}

// deviceOffer and deviceOneWay are DEVICE_OFFER and DEVICE_ONE_WAY of maps.h.
const (
	deviceOffer  = 1
	deviceOneWay = 8
	deviceIPsec  = 16 // DEVICE_IPSEC
	deviceTagged = 32 // DEVICE_TAGGED
)

// setupTUNs brings the TUNs up. The wire TUN gets the MTU of the wire once that is known. The app TUN takes the largest
// packets, since its segments never reach a wire.
func (d *Datapath) setupTUNs() error {
	var err error
	if d.appIndex, err = d.setupTUN(d.cfg.appName(), maxMTU, appQueue); err != nil {
		return err
	}
	if d.wireIndex, err = d.setupTUN(d.cfg.wireName(), defaultMTU, 4096); err != nil {
		return err
	}
	err = netdev.Routable(d.cfg.wireName())
	d.wireMTU.Store(defaultMTU)
	return err
}

const (
	appQueue   = 1000 // datagrams that wait for user space: as many as a native backlog (netdev_max_backlog); more would be late
	maxMTU     = 65535
	headMTU    = 16000 // what a program can prepend a link header to (bpf_skb_change_head): less than SKB_MAX_ALLOC
	defaultMTU = 1500
	minMTU     = 1280 // the least that IPv6 allows, RFC 8200 section 5
)

// setupTUN configures a TUN device and returns its index.
func (d *Datapath) setupTUN(name string, mtu, queue int) (int, error) {
	l, err := d.nl.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if err := silence(name); err != nil {
		return 0, err
	}
	for _, set := range []func() error{
		func() error { return d.nl.LinkSetMTU(l, mtu) },
		func() error { return d.nl.LinkSetTxQLen(l, queue) },
		func() error { return d.nl.LinkSetUp(l) },
	} {
		if err := set(); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	return l.Attrs().Index, nil
}

// silence keeps the kernel's IPv6 off a device before it comes up, since the device only carries raw packets of the
// programs.
func silence(name string) error {
	if !netdev.HasIPv6() {
		return nil
	}
	return netdev.WriteSysctl("ipv6/conf/"+name+"/disable_ipv6", "1")
}

// Looked returns the devices on which connections are looked at, and why the configured ones, or all of the default,
// are missing.
func (d *Datapath) Looked() (devices, missing []string) {
	if l := d.looked.Load(); l != nil {
		return l.Devices, l.Missing
	}
	return nil, nil
}

// sync makes programs, device map, own addresses and MTU match the devices of the namespace. It runs on a thread of the
// namespace.
func (d *Datapath) sync() error {
	links, addrs, err := netdev.List(d.nl)
	if err != nil {
		return err
	}
	offers, err := d.offers(links, addrs)
	if err != nil {
		return err
	}
	slices.SortStableFunc(links, func(a, b netlink.Link) int { // devices that carry offers first, in case the map is full
		return cmp.Compare(bit(offers[b.Attrs().Name]), bit(offers[a.Attrs().Name]))
	})
	uses := netdev.UsesOf(links, d.cfg.InfiniBand)
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	present := map[int]bool{}
	for _, l := range links {
		if use := uses[l.Attrs().Index]; use.Programs {
			present[l.Attrs().Index] = true
			errs = append(errs, d.syncDeviceLocked(l, use, offers[l.Attrs().Name] && use.Why == ""))
		}
	}
	for i := range d.devices {
		if !present[i] {
			errs = append(errs, d.detachLocked(i))
		}
	}
	d.noteDevicesLocked()
	d.looked.Store(netdev.LookedAt(links, uses, d.cfg.Devices, offers, func(index int) bool {
		dev, attached := d.devices[index]
		return attached && dev.value.Flags&deviceOffer != 0
	}))
	errs = append(errs, d.syncMTU(links, offers), d.syncOwn(netdev.StackOf(links), addrs))
	return errors.Join(errs...)
}

// noteDevicesLocked publishes the devices for isAttached.
func (d *Datapath) noteDevicesLocked() {
	set := make(map[int]struct{}, len(d.devices))
	for i := range d.devices {
		set[i] = struct{}{}
	}
	d.present.Store(&set)
}

// isAttached reports whether our programs are attached to a device.
func (d *Datapath) isAttached(ifindex int) bool {
	set := d.present.Load()
	if set == nil {
		return false
	}
	_, ok := (*set)[ifindex]
	return ok
}

// syncDeviceLocked attaches our programs to a device, or updates its entry in the device map.
func (d *Datapath) syncDeviceLocked(l netlink.Link, use netdev.Use, offer bool) error {
	a := l.Attrs()
	header, _ := netdev.Header(a.EncapType)
	v := smcgwDevice{L2len: uint8(header)}
	copy(v.Mac[:], a.HardwareAddr)
	switch {
	case netdev.OneWay(l):
		v.Flags, offer = deviceOneWay, false
	case offer:
		v.Flags = deviceOffer
	}
	if netdev.IPsec(l) {
		v.Flags |= deviceIPsec
	}
	if use.Tagged {
		v.Flags |= deviceTagged
	}
	dev, known := d.devices[a.Index]
	if known && dev.value.L2len != v.L2len { // a bond that has taken over the type of its first port
		if err := d.detachLocked(a.Index); err != nil {
			return err
		}
		known = false
	}
	if !known {
		dev = newDevice(d.counting)
	}
	dev.up = a.Flags&net.FlagUp != 0
	for family, way := range dev.legs {
		if offer && way != "" {
			v.Flags |= blockedBits[family]
		}
	}
	attached := known && (d.counting || len(dev.links) > 0)
	if attached && dev.value == v && dev.name == a.Name {
		return nil
	}
	if err := d.objs.Devices.Put(uint32(a.Index), v); err != nil {
		if d.noRoom("devices", err) {
			return nil
		}
		return fmt.Errorf("device %s: %w", a.Name, err)
	}
	dev.name, dev.value = a.Name, v
	d.devices[a.Index] = dev
	if attached || d.counting {
		return nil
	}
	if err := d.attachDevice(dev, a.Index); err != nil {
		err = errors.Join(err, d.detachLocked(a.Index)) // retried at the next change
		if errors.Is(err, unix.ENODEV) {
			return nil // the device is gone in the meantime
		}
		return err
	}
	d.log.Debug("device attached", "device", a.Name, "offers", offer)
	return nil
}

// attachDevice attaches ingress before egress: no offer may leave before its answer can be recognised.
func (d *Datapath) attachDevice(dev *device, ifindex int) error {
	in, out := d.objs.IngressL2, d.objs.EgressL2
	switch dev.value.L2len {
	case 0:
		in, out = d.objs.IngressL3, d.objs.EgressL3
	case netdev.IPoIBLen:
		in, out = d.objs.IngressIB, d.objs.EgressIB
	}
	for _, a := range []struct {
		prog *bpf.Program
		at   bpf.AttachType
	}{{in, bpf.AttachTCXIngress}, {out, bpf.AttachTCXEgress}} {
		l, err := d.attachWire(a.prog, ifindex, a.at)
		if err != nil {
			return fmt.Errorf("%s: %w", dev.name, err)
		}
		dev.links = append(dev.links, l)
	}
	return nil
}

// detach detaches our programs from a device. Closing the links would not suffice, because the guardian has duplicates.
func (dev *device) detach() (err error) {
	for _, l := range slices.Backward(dev.links) {
		err = errors.Join(err, l.Detach(), l.Close())
	}
	dev.links = nil
	return err
}

// detachLocked forgets a device that is gone or has become a port.
func (d *Datapath) detachLocked(ifindex int) error {
	dev := d.devices[ifindex]
	delete(d.devices, ifindex)
	err := dev.detach()
	if e := d.objs.Devices.Delete(uint32(ifindex)); e != nil && !errors.Is(e, bpf.ErrKeyNotExist) {
		err = errors.Join(err, fmt.Errorf("device %s: %w", dev.name, e))
	}
	d.log.Debug("device detached", "device", dev.name)
	return err
}

// detachDevices detaches all devices.
func (d *Datapath) detachDevices() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for i := range d.devices {
		errs = append(errs, d.detachLocked(i))
	}
	return errors.Join(errs...)
}

// syncMTU sets the MTU of the wire TUN to the smallest of the devices that carry offers.
func (d *Datapath) syncMTU(links []netlink.Link, offers map[string]bool) error {
	mtu := d.cfg.mostMTU()
	var wire netlink.Link
	for _, l := range links {
		if l.Attrs().Index == d.wireIndex {
			wire = l
		}
		if offers[l.Attrs().Name] && l.Attrs().Flags&net.FlagLoopback == 0 {
			mtu = min(mtu, l.Attrs().MTU)
		}
	}
	if wire == nil || mtu == d.cfg.mostMTU() {
		return nil
	}
	mtu = max(mtu, minMTU)
	if err := d.setWireMTU(mtu); err != nil {
		return err
	}
	if wire.Attrs().MTU == mtu {
		return nil
	}
	if err := d.nl.LinkSetMTU(wire, mtu); err != nil {
		return fmt.Errorf("mtu of %s: %w", d.cfg.wireName(), err)
	}
	return nil
}

// ownKey returns the map key of an interface address.
func ownKey(ip net.IP) (smcgwPeerKey, bool) {
	var k smcgwPeerKey
	if v4 := ip.To4(); v4 != nil {
		copy(k.Addr[:], v4)
		k.Family = family4
		return k, true
	}
	k.Family = family6
	return k, copy(k.Addr[:], ip.To16()) == len(k.Addr)
}

// Addrs returns the addresses that peers can reach and sockets can be bound to now: those of the devices that carry
// offers, and service addresses on the loopback device that are reached through these devices.
func (d *Datapath) Addrs() ([]netip.Addr, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	links, addrs, err := netdev.List(d.nl)
	if err != nil {
		return nil, err
	}
	offers, err := d.offers(links, addrs)
	if err != nil {
		return nil, err
	}
	return netdev.Reachable(links, addrs, offers), nil
}

// offers returns the names of the devices that carry offers.
func (d *Datapath) offers(links []netlink.Link, addrs []netlink.Addr) (map[string]bool, error) {
	policy := d.inForce.Load()
	return d.routes.Names(d.nl, links, addrs, d.cfg.Devices, policy, policy.Carries)
}

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

// RouteDevice returns the interface index of the wire device through which this host reaches remote from its address
// local, or [ErrNoDevice] if our programs are not attached to that device.
func (d *Datapath) RouteDevice(local, remote netip.Addr) (int, error) {
	local, remote = local.Unmap(), remote.Unmap()
	if !local.IsValid() || !remote.IsValid() || local.Is4() != remote.Is4() {
		return 0, fmt.Errorf("route from %v to %v: invalid addresses", local, remote)
	}
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	routes, err := d.routeNL.RouteGetWithOptions(remote.AsSlice(), &netlink.RouteGetOptions{SrcAddr: local.AsSlice()})
	if err != nil {
		return 0, fmt.Errorf("route from %v to %v: %w", local, remote, err)
	}
	for _, r := range routes {
		if d.isAttached(r.LinkIndex) {
			return r.LinkIndex, nil
		}
	}
	return 0, fmt.Errorf("route from %v to %v: %w", local, remote, ErrNoDevice)
}
