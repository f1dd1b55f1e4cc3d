package testnet

import (
	"fmt"
	"net"
	"net/netip"
)

// Cable connects two hosts directly, without switch and middlebox, by a veth pair of its own, and returns the IPv4
// addresses of its ends, 10.78.N.1 and 10.78.N.2. Measurements over it show only the hosts.
func (n *Network) Cable(a, b *Host, mtu int) (addrA, addrB netip.Addr, err error) {
	i := byte(n.cables.Add(1))
	device := fmt.Sprintf("cable%d", i)
	mac := func(end byte) net.HardwareAddr { return net.HardwareAddr{2, 0x77, 0, 1, i, end} }
	addr := func(end byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 78, i, end}) }
	if err := addVeth(a.node, device, mac(1), b.node, device, mac(2), mtu); err != nil {
		return netip.Addr{}, netip.Addr{}, err
	}
	for end, h := range []*Host{a, b} {
		if err := h.node.configure(device, netip.PrefixFrom(addr(byte(end+1)), prefix4Bits)); err != nil {
			return netip.Addr{}, netip.Addr{}, fmt.Errorf("cable of %s: %w", h.Name, err)
		}
	}
	return addr(1), addr(2), nil
}
