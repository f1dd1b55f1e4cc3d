package testnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// TapDevice is what a tapped host calls its device.
const TapDevice = "tap0"

// Tapped is a host on no switch: its only device is a tap, and the program that
// opens the tap is the other end of the cable: an emulated machine for
// instance, started by Command. It has the addresses of host number 1; SetLink
// and SetOffload, which concern the switch, are not for it.
type Tapped struct{ *Host }

// NewTapped builds the host with a device of that MTU; Close removes it. It
// needs root.
func NewTapped(mtu int) (*Tapped, error) {
	if err := Sweep(); err != nil {
		return nil, err
	}
	owner, err := ownerName(os.Getpid())
	if err != nil {
		return nil, err
	}
	nd, err := newNode(fmt.Sprintf("%s-%d-tapped", owner, networks.Add(1)))
	if err != nil {
		return nil, err
	}
	h := &Host{Name: "tapped", Device: TapDevice, Addr4: addr4(1), Addr6: addr6(1), node: nd, number: 1}
	t := &Tapped{Host: h}
	if err := t.addTap(mtu); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Tapped) addTap(mtu int) error {
	if err := t.node.quietIPv6(); err != nil {
		return err
	}
	tap := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.TUNTAP_MODE_TAP}
	tap.Name, tap.MTU = TapDevice, mtu
	// The device is made by an open file, so in the thread's namespace.
	if err := t.Do(func() error { return netlink.LinkAdd(tap) }); err != nil {
		return fmt.Errorf("add tap: %w", err)
	}
	if err := t.SetMTU(mtu); err != nil {
		return fmt.Errorf("mtu of tap: %w", err)
	}
	return t.node.configure(TapDevice, netip.PrefixFrom(t.Addr4, prefix4Bits), netip.PrefixFrom(t.Addr6, prefix6Bits))
}

// Close ends every process on the host and removes it.
func (t *Tapped) Close() error { return t.close() }
