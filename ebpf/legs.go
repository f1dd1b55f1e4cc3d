package ebpf

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
)

// legMAC and hostMAC are the link addresses of the pair of devices that leads to
// the legs: theirs (LEG_MAC of maps.h), and that of the host's end.
var (
	legMAC  = net.HardwareAddr{0x02, 'S', 'M', 'G', 'W', 0x02}
	hostMAC = net.HardwareAddr{0x02, 'S', 'M', 'G', 'W', 0x01}
)

// legBegins is what a leg may hold when it is new, in bytes: as sockets do by default.
const legBegins = 128 << 10

// legSettings returns what the legs take over from the host, how much memory a socket may
// use, and the most of it: more brings no speed on one host. A leg begins as small as
// sockets do, widens by what it carries (legs.Room), and takes little that it cannot send.
func legSettings() (map[string]string, error) {
	settings := map[string]string{"ipv4/tcp_moderate_rcvbuf": "0", "ipv4/tcp_notsent_lowat": strconv.Itoa(legBegins)}
	for key, most := range map[string][]int{"ipv4/tcp_rmem": {legBegins, legBegins, 2 << 20}, "ipv4/tcp_wmem": {legBegins, legBegins, 1 << 20}} {
		value, err := netdev.ReadSysctl(key)
		if err != nil {
			return nil, err
		}
		settings[key] = netdev.AtMost(value, most)
	}
	return settings, nil
}

// setupLegs makes the pair and has the keeper of the namespace set up its end.
func (d *Datapath) setupLegs() error {
	if err := d.makePair(); err != nil {
		return err
	}
	settings, err := legSettings()
	if err != nil {
		return err
	}
	_, err = d.cfg.Legs.Device(d.cfg.legName(), d.cfg.mostMTU(), hostMAC, settings)
	return err
}

// makePair makes the devices. What is left of a gateway of this generation that was
// killed a moment ago is in the way until its namespace is gone; that it is dead is
// known by its TUNs.
func (d *Datapath) makePair() error {
	name := d.cfg.hostName()
	if old, err := d.nl.LinkByName(name); err == nil {
		if err := d.nl.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remains of %s: %w", name, err)
		}
	}
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, MTU: d.cfg.mostMTU(), TxQLen: -1, HardwareAddr: hostMAC},
		PeerName:  d.cfg.legName(), PeerHardwareAddr: legMAC, PeerNamespace: netlink.NsFd(int(d.cfg.Legs.File().Fd())),
	}
	if err := d.nl.LinkAdd(pair); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l, err := d.nl.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	d.pair = l
	if err := silence(name); err != nil {
		return err
	}
	for _, set := range []func() error{
		func() error { return d.nl.LinkSetARPOff(l) },
		func() error { return d.nl.LinkSetUp(l) },
	} {
		if err := set(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// legIndex is the interface of the host's end, 0 without one.
func (d *Datapath) legIndex() int {
	if d.pair == nil {
		return 0
	}
	return d.pair.Attrs().Index
}

// attachPair attaches the programs to the host's end. They go with the device, not
// with this process: a leg's reset that leaves when the gateway dies is steered as
// long as there is a way for it.
func (d *Datapath) attachPair() error {
	for _, a := range []struct {
		prog *bpf.Program
		at   bpf.AttachType
	}{
		{d.objs.LegIn, bpf.AttachTCXIngress},
		{d.objs.LegOut, bpf.AttachTCXEgress},
	} {
		err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: d.legIndex(), Program: a.prog, Attach: a.at})
		if err != nil {
			return fmt.Errorf("%s: %w", d.cfg.hostName(), err)
		}
	}
	return nil
}

// removePair removes the devices.
func (c *carriage) removePair(nl *netlink.Handle) error {
	if c.pair == nil {
		return nil
	}
	if err := nl.LinkDel(c.pair); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%s: %w", c.pair.Attrs().Name, err)
	}
	return nil
}
