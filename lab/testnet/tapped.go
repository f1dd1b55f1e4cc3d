package testnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// TapDevice is the name of a tapped host's device.
const TapDevice = "tap0"

// SecondTap is the second tap of a tapped host; see [Tapped.AddSecond].
const SecondTap = "tap1"

// tapBridge joins the taps of a tapped host that has two.
const tapBridge = "br0"

// Tapped is a host that is not on a switch. Its only device is a tap, and the program that opens the tap is the other
// end of the cable, for instance an emulated machine started by Command. It has the addresses of host number 1. Do not
// use SetLink and SetOffload, which are about the switch.
type Tapped struct{ *Host }

// NewTapped builds the host with a device of the given MTU; Close removes it. It needs root.
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
	// The device is created through an open file, so it is in the thread's namespace.
	if err := t.Do(func() error { return netlink.LinkAdd(tap) }); err != nil {
		return fmt.Errorf("add tap: %w", err)
	}
	if err := t.SetMTU(mtu); err != nil {
		return fmt.Errorf("mtu of tap: %w", err)
	}
	return t.node.configure(TapDevice, netip.PrefixFrom(t.Addr4, prefix4Bits), netip.PrefixFrom(t.Addr6, prefix6Bits))
}

// AddSecond gives the host a second tap, and joins both with a bridge that has the host's addresses from then on. The
// programs that open the taps are on one network.
func (t *Tapped) AddSecond(mtu int) error {
	second := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.TUNTAP_MODE_TAP}
	second.Name, second.MTU = SecondTap, mtu
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = tapBridge
	if err := t.Do(func() error { return errors.Join(netlink.LinkAdd(second), netlink.LinkAdd(bridge)) }); err != nil {
		return fmt.Errorf("add second tap: %w", err)
	}
	for _, name := range []string{TapDevice, SecondTap} {
		tap, err := t.node.nl.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		addrs, err := t.node.nl.AddrList(tap, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("addresses of %s: %w", name, err)
		}
		for i := range addrs {
			err = errors.Join(err, t.node.nl.AddrDel(tap, &addrs[i]))
		}
		if err = errors.Join(err, t.node.nl.LinkSetMaster(tap, bridge), t.node.nl.LinkSetUp(tap)); err != nil {
			return fmt.Errorf("bridge %s: %w", name, err)
		}
	}
	return t.node.configure(tapBridge, netip.PrefixFrom(t.Addr4, prefix4Bits), netip.PrefixFrom(t.Addr6, prefix6Bits))
}

// Close ends every process on the host and removes it.
func (t *Tapped) Close() error { return t.close() }
