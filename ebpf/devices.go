package ebpf

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// device is a network device our programs are attached to.
type device struct {
	name  string
	value smcgwDevice
	links []link.Link // ingress, egress
}

// etherLen is the length of the link header of Ethernet-like devices.
const etherLen = 14

// deviceOffer is DEVICE_OFFER of maps.h.
const deviceOffer = 1

// linkHeader returns the length of the link header that the programs see on a
// device, and false for devices they cannot parse.
func linkHeader(encap string) (int, bool) {
	switch encap {
	case "ether":
		return etherLen, true
	case "none", "ppp", "ipip", "tunnel6", "sit", "gre", "gre6":
		return 0, true
	default:
		return 0, false
	}
}

// wanted reports whether a device gets our programs. Ports of a bridge or bond
// do not: their master sees the same packets. Ports of a VRF do: it sees them
// too late for routing by the port.
func wanted(l netlink.Link, masters map[int]string) bool {
	a := l.Attrs()
	if a.Flags&net.FlagLoopback != 0 || strings.HasPrefix(a.Name, devicePrefix) || l.Type() == "vrf" {
		return false
	}
	if kind, ok := masters[a.MasterIndex]; ok && kind != "vrf" {
		return false
	}
	_, ok := linkHeader(a.EncapType)
	return ok
}

// setupTUNs brings the TUNs up. W has the MTU of the wire as soon as it is known;
// A takes the largest packets, since its segments never reach a wire.
func (d *Datapath) setupTUNs() error {
	lo, err := d.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	d.loIndex = lo.Attrs().Index
	if d.appIndex, err = d.setupTUN(d.cfg.appName(), maxMTU, appQueue); err != nil {
		return err
	}
	d.wireIndex, err = d.setupTUN(d.cfg.wireName(), defaultMTU, 4096)
	d.wireMTU.Store(defaultMTU)
	return err
}

const (
	appQueue   = 1000 // datagrams that wait for user space: as many as a native backlog (netdev_max_backlog); more would be late
	maxMTU     = 65535
	defaultMTU = 1500
	minMTU     = 1280 // the least IPv6 allows, RFC 8200 section 5
)

// setupTUN configures a TUN device and returns its index. Address generation is
// turned off before it comes up, so that it stays silent.
func (d *Datapath) setupTUN(name string, mtu, queue int) (int, error) {
	l, err := d.nl.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if hasIPv6() {
		for key, value := range map[string]string{"addr_gen_mode": "1", "disable_ipv6": "0"} {
			if _, err := writeSysctl("ipv6/conf/"+name+"/"+key, value); err != nil {
				return 0, err
			}
		}
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

// setupSysctls: what arrives from A or on lo has source addresses of this host
// (accept_local). With the loose filter of all interfaces A needs an address; with
// the strict one nothing can be steered and everything stays native.
func (d *Datapath) setupSysctls() error {
	app, wire := d.cfg.appName(), d.cfg.wireName()
	for _, s := range []struct{ key, value string }{
		{"ipv4/conf/" + app + "/rp_filter", "0"},
		{"ipv4/conf/" + app + "/accept_local", "1"},
		{"ipv4/conf/" + wire + "/rp_filter", "0"},
		{loAcceptLocal, "1"},
	} {
		old, err := writeSysctl(s.key, s.value)
		if err != nil {
			return err
		}
		if s.key == loAcceptLocal && old != s.value {
			d.restore[s.key] = old
		}
	}
	if changed, err := newRouting(d.nl, d.cfg).changed(); err != nil {
		return err
	} else if changed && d.beside == nil { // by a gateway that was killed
		d.restore[loAcceptLocal] = "0"
	}
	if hasIPv6() {
		// W carries raw packets between netstack and the programs only.
		if _, err := writeSysctl("ipv6/conf/"+wire+"/disable_ipv6", "1"); err != nil {
			return err
		}
	}
	if rpFilter() != "2" {
		return nil
	}
	l, err := d.nl.LinkByIndex(d.appIndex)
	if err != nil {
		return fmt.Errorf("%s: %w", app, err)
	}
	// 192.0.0.8 is the dummy address of RFC 7600.
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 0, 8), Mask: net.CIDRMask(32, 32)}}
	if err := d.nl.AddrAdd(l, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("address of %s: %w", app, err)
	}
	return nil
}

// offerDevices returns the names of the devices that carry offers.
func (d *Datapath) offerDevices(links []netlink.Link) (map[string]bool, error) {
	names := map[string]bool{}
	for _, n := range d.cfg.Devices {
		names[n] = true
	}
	if len(d.cfg.Devices) > 0 {
		return names, nil
	}
	byIndex := map[int]string{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l.Attrs().Name
	}
	for _, f := range d.routing.families {
		routes, err := d.routing.routesOf(f, unix.RT_TABLE_MAIN)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			for _, i := range defaultRouteLinks(r) {
				names[byIndex[i]] = true
			}
		}
	}
	return names, nil
}

// defaultRouteLinks returns the devices of a default route, else nothing.
func defaultRouteLinks(r netlink.Route) []int {
	if r.Dst != nil {
		if ones, _ := r.Dst.Mask.Size(); ones != 0 {
			return nil
		}
	}
	var out []int
	if r.LinkIndex > 0 {
		out = append(out, r.LinkIndex)
	}
	for _, hop := range r.MultiPath {
		out = append(out, hop.LinkIndex)
	}
	return out
}

// sync makes programs, device map, own addresses and MTU follow the devices of
// the namespace. It runs on a thread of the namespace.
func (d *Datapath) sync() error {
	links, err := d.nl.LinkList()
	if err != nil {
		return fmt.Errorf("links: %w", err)
	}
	offers, err := d.offerDevices(links)
	if err != nil {
		return err
	}
	masters := map[int]string{}
	for _, l := range links {
		masters[l.Attrs().Index] = l.Type()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	present := map[int]bool{}
	for _, l := range links {
		if wanted(l, masters) {
			present[l.Attrs().Index] = true
			errs = append(errs, d.syncDeviceLocked(l, offers[l.Attrs().Name]))
		}
	}
	for i := range d.devices {
		if !present[i] {
			errs = append(errs, d.detachLocked(i))
		}
	}
	d.noteDevicesLocked()
	errs = append(errs, d.syncMTU(links, offers), d.syncOwn())
	return errors.Join(errs...)
}

// noteDevicesLocked is for isAttached.
func (d *Datapath) noteDevicesLocked() {
	set := make(map[int]struct{}, len(d.devices))
	for i := range d.devices {
		set[i] = struct{}{}
	}
	d.present.Store(&set)
}

// isAttached tells whether our programs are on a device.
func (d *Datapath) isAttached(ifindex int) bool {
	set := d.present.Load()
	if set == nil {
		return false
	}
	_, ok := (*set)[ifindex]
	return ok
}

// syncDeviceLocked attaches our programs to a device or updates what they know.
func (d *Datapath) syncDeviceLocked(l netlink.Link, offer bool) error {
	a := l.Attrs()
	header, _ := linkHeader(a.EncapType)
	v := smcgwDevice{L2len: uint8(header)}
	copy(v.Mac[:], a.HardwareAddr)
	if offer {
		v.Flags |= deviceOffer
	}
	dev, known := d.devices[a.Index]
	if known && dev.value == v && dev.name == a.Name {
		return nil
	}
	if err := d.objs.Devices.Put(uint32(a.Index), v); err != nil {
		return fmt.Errorf("device %s: %w", a.Name, err)
	}
	if known {
		dev.value, dev.name = v, a.Name
		return nil
	}
	dev = &device{name: a.Name, value: v}
	d.devices[a.Index] = dev
	if err := d.attachDevice(dev, a.Index); err != nil {
		err = errors.Join(err, d.detachLocked(a.Index)) // tried again at the next change
		if errors.Is(err, unix.ENODEV) {
			return nil // it went meanwhile
		}
		return err
	}
	d.log.Debug("device attached", "device", a.Name, "offers", offer)
	return nil
}

// attachDevice attaches ingress before egress: an offer must not leave before
// its answer can be recognised.
func (d *Datapath) attachDevice(dev *device, ifindex int) error {
	in, out := d.objs.IngressL2, d.objs.EgressL2
	if dev.value.L2len == 0 {
		in, out = d.objs.IngressL3, d.objs.EgressL3
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

// detachLocked forgets a device that is gone or became a port.
func (d *Datapath) detachLocked(ifindex int) error {
	dev := d.devices[ifindex]
	delete(d.devices, ifindex)
	err := closeLinks(dev.links)
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

// syncMTU gives W the smallest MTU of the offer devices.
func (d *Datapath) syncMTU(links []netlink.Link, offers map[string]bool) error {
	mtu := maxMTU
	var wire netlink.Link
	for _, l := range links {
		if l.Attrs().Index == d.wireIndex {
			wire = l
		}
		if offers[l.Attrs().Name] && l.Attrs().Flags&net.FlagLoopback == 0 {
			mtu = min(mtu, l.Attrs().MTU)
		}
	}
	if wire == nil || mtu == maxMTU {
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

// syncOwn makes the map of own addresses equal to the namespace's.
func (d *Datapath) syncOwn() error {
	addrs, err := d.nl.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	want := map[smcgwPeerKey]bool{}
	for _, a := range addrs {
		if k, ok := ownKey(a.IP); ok {
			want[k] = true
		}
	}
	var gone []smcgwPeerKey
	var k smcgwPeerKey
	var one uint8
	it := d.objs.Own.Iterate()
	for it.Next(&k, &one) {
		if !want[k] {
			gone = append(gone, k)
		}
		delete(want, k)
	}
	errs := []error{it.Err()}
	for k := range want {
		errs = append(errs, d.objs.Own.Put(k, uint8(1)))
	}
	for _, k := range slices.Compact(gone) {
		if err := d.objs.Own.Delete(k); err != nil && !errors.Is(err, bpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ownKey is the map key of an interface address.
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
