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

// legMAC and hostMAC are the link addresses of the veth pair that leads to the legs: that of the legs' end (LEG_MAC of
// maps.h), and that of the host veth.
var (
	legMAC  = net.HardwareAddr{0x02, 'S', 'M', 'G', 'W', 0x02}
	hostMAC = net.HardwareAddr{0x02, 'S', 'M', 'G', 'W', 0x01}
)

// legBegins is the initial buffer size of a leg in bytes, the default of sockets.
const legBegins = 128 << 10

// legSettings returns the settings that the legs take from the host, how much memory a socket may use, bounded because
// more brings no speed on one host. A leg begins with the default of sockets, grows with what it carries (legs.Room),
// and accepts little data that it cannot send.
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

// setupLegs creates the veth pair and has the keeper set up its end in the namespace.
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

// makePair creates the veth pair. If a gateway of this generation was killed a moment ago, its pair remains until its
// namespace is gone. That gateway is known to be dead, because its TUNs could be opened, so makePair removes the pair.
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

// legIndex returns the interface index of the host veth, or 0 if there is none.
func (d *Datapath) legIndex() int {
	if d.pair == nil {
		return 0
	}
	return d.pair.Attrs().Index
}

// attachPair attaches the programs to the host veth. They live as long as the device, not as long as this process, so a
// leg's reset that leaves when the gateway dies is steered as long as there is a path for it.
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

// removePair removes the veth pair.
func (c *carriage) removePair(nl *netlink.Handle) error {
	if c.pair == nil {
		return nil
	}
	if err := nl.LinkDel(c.pair); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%s: %w", c.pair.Attrs().Name, err)
	}
	return nil
}
