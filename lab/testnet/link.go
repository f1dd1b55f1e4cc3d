package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

const (
	hostDevice   = "eth0" // a host's name for its link to the switch
	bridgeDevice = "br0"
	routerNumber = 254
	prefix4Bits  = 24
	prefix6Bits  = 64
)

func addr4(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(n)}) }

func addr6(n int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 15: byte(n)})
}

// hostMAC returns the hardware address of host n, by which the middlebox recognises hosts.
func hostMAC(n int) net.HardwareAddr { return net.HardwareAddr{2, 0x77, 0, 0, 0, byte(n)} }

func portMAC(n int) net.HardwareAddr { return net.HardwareAddr{2, 0x77, 0, 0, 1, byte(n)} }

// portDevice returns the name of the switch's end of the link to a host.
func portDevice(host string) string { return "p-" + host }

// quietIPv6 keeps the kernel from waiting (duplicate address detection) and from sending on its own (router
// solicitations).
func (nd *node) quietIPv6() error {
	return nd.sysctls(map[string]string{
		"net.ipv6.conf.all.accept_dad":               "0",
		"net.ipv6.conf.default.accept_dad":           "0",
		"net.ipv6.conf.default.dad_transmits":        "0",
		"net.ipv6.conf.default.router_solicitations": "0",
		"net.ipv6.conf.default.accept_ra":            "0",
	})
}

// sysctl sets one sysctl of the node's namespace.
func (nd *node) sysctl(name, value string) error {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
	return doIn(nd.ns, func() error {
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("sysctl %s=%s: %w", name, value, err)
		}
		return nil
	})
}

func (nd *node) sysctls(all map[string]string) error {
	var errs []error
	for name, value := range all {
		errs = append(errs, nd.sysctl(name, value))
	}
	return errors.Join(errs...)
}

func (n *Network) buildSwitch() error {
	if err := n.sw.quietIPv6(); err != nil {
		return err
	}
	// The router of the package documentation: it forwards but has no route except its own, so it answers with ICMP
	// errors.
	if err := n.sw.sysctls(map[string]string{"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}); err != nil {
		return err
	}
	snooping := false // multicast must flood, for neighbour discovery
	br := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), MulticastSnooping: &snooping}
	br.Name, br.MTU, br.HardwareAddr = bridgeDevice, n.cfg.MTU, portMAC(routerNumber)
	if err := n.sw.nl.LinkAdd(br); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	return n.sw.configure(bridgeDevice,
		netip.PrefixFrom(n.RouterAddr4, prefix4Bits), netip.PrefixFrom(n.RouterAddr6, prefix6Bits))
}

// configure gives a device its addresses, and brings it and loopback up.
func (nd *node) configure(device string, prefixes ...netip.Prefix) error {
	link, err := nd.nl.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	for _, p := range prefixes {
		if err := nd.addAddress(link, p); err != nil {
			return err
		}
	}
	lo, err := nd.nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("device lo: %w", err)
	}
	return errors.Join(nd.nl.LinkSetUp(lo), nd.nl.LinkSetUp(link))
}

func (nd *node) addAddress(link netlink.Link, p netip.Prefix) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP:   p.Addr().AsSlice(),
		Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
	}}
	if p.Addr().Is6() {
		addr.Flags = 0x02 // IFA_F_NODAD
	}
	if err := nd.nl.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("address %s: %w", p, err)
	}
	return nil
}

// addDefaultRoute sets the default route of a host.
func (nd *node) addDefaultRoute(via netip.Addr) error {
	link, err := nd.nl.LinkByName(hostDevice)
	if err != nil {
		return fmt.Errorf("device %s: %w", hostDevice, err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()}
	if err := nd.nl.RouteAdd(route); err != nil {
		return fmt.Errorf("default route via %s: %w", via, err)
	}
	return nil
}

// addVeth connects device a in namespace na with device b in namespace nb.
func addVeth(na *node, a string, macA net.HardwareAddr, nb *node, b string, macB net.HardwareAddr, mtu int) error {
	veth := &netlink.Veth{
		LinkAttrs: netlink.NewLinkAttrs(), PeerName: b,
		PeerHardwareAddr: macB, PeerNamespace: netlink.NsFd(nb.ns), PeerMTU: uint32(mtu),
	}
	veth.Name, veth.HardwareAddr, veth.MTU = a, macA, mtu
	if err := na.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s: %w", a, err)
	}
	return nil
}

// addHost creates host number i with its link to the switch. On error it also returns what has been created, to be
// closed.
func (n *Network) addHost(name string, i int) (*Host, error) {
	nd, err := newNode(n.prefix + name)
	if err != nil {
		return nil, err
	}
	h := &Host{Name: name, Device: hostDevice, Addr4: addr4(i), Addr6: addr6(i), node: nd, net: n, number: i}
	if err := nd.quietIPv6(); err != nil {
		return h, err
	}
	port := portDevice(name)
	if err := addVeth(n.sw, port, portMAC(i), nd, hostDevice, hostMAC(i), n.cfg.MTU); err != nil {
		return h, err
	}
	if err := n.plugPort(port); err != nil {
		return h, err
	}
	if err := nd.configure(hostDevice, netip.PrefixFrom(h.Addr4, prefix4Bits), netip.PrefixFrom(h.Addr6, prefix6Bits)); err != nil {
		return h, err
	}
	if err := errors.Join(nd.addDefaultRoute(n.RouterAddr4), nd.addDefaultRoute(n.RouterAddr6)); err != nil {
		return h, err
	}
	if n.cfg.NoOffload {
		return h, h.SetOffload(false)
	}
	return h, nil
}

// plugPort makes a device a port of the bridge.
func (n *Network) plugPort(device string) error {
	port, err := n.sw.nl.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	br, err := n.sw.nl.LinkByName(bridgeDevice)
	if err != nil {
		return fmt.Errorf("device %s: %w", bridgeDevice, err)
	}
	if err := n.sw.nl.LinkSetMaster(port, br); err != nil {
		return fmt.Errorf("port %s: %w", device, err)
	}
	if err := n.sw.nl.LinkSetUp(port); err != nil {
		return fmt.Errorf("port %s up: %w", device, err)
	}
	return nil
}

// Behind adds a host that reaches the network only through another one, which forwards for it as a machine does for its
// containers. Its addresses are 10.77.N.2 and fd77:0:0:N::2. Nftables rules of the test decide whether they are
// translated; without translation the switch's router routes back to it.
func (n *Network) Behind(via *Host, name string) (*Host, error) {
	nd, err := newNode(n.prefix + name)
	if err != nil {
		return nil, err
	}
	sub := 100 + len(n.behind)
	h := &Host{
		Name: name, Device: hostDevice, node: nd, net: n, number: sub,
		Addr4: netip.AddrFrom4([4]byte{10, 77, byte(sub), 2}),
		Addr6: netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 7: byte(sub), 15: 2}),
	}
	n.behind = append(n.behind, h)
	return h, n.connectBehind(via, h)
}

func (n *Network) connectBehind(via, h *Host) error {
	inner := "c-" + h.Name
	gw4, gw6 := h.Addr4.Prev(), h.Addr6.Prev()
	if err := h.node.quietIPv6(); err != nil {
		return err
	}
	err := addVeth(via.node, inner, portMAC(h.number), h.node, hostDevice, hostMAC(h.number), n.cfg.MTU)
	if err != nil {
		return err
	}
	return errors.Join(
		via.node.sysctls(map[string]string{"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}),
		via.node.configure(inner, netip.PrefixFrom(gw4, prefix4Bits), netip.PrefixFrom(gw6, prefix6Bits)),
		h.node.configure(hostDevice, netip.PrefixFrom(h.Addr4, prefix4Bits), netip.PrefixFrom(h.Addr6, prefix6Bits)),
		h.node.addDefaultRoute(gw4), h.node.addDefaultRoute(gw6),
		n.routeBack(h.Addr4, prefix4Bits, via.Addr4), n.routeBack(h.Addr6, prefix6Bits, via.Addr6),
	)
}

// routeBack gives the switch and every host the route to a host behind another.
func (n *Network) routeBack(addr netip.Addr, bits int, via netip.Addr) error {
	prefix := netip.PrefixFrom(addr, bits).Masked()
	route := func() *netlink.Route {
		return &netlink.Route{
			Dst: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(bits, addr.BitLen())},
			Gw:  via.AsSlice(),
		}
	}
	errs := []error{n.sw.nl.RouteAdd(route())}
	for _, h := range n.hosts {
		if h.Addr4 != via && h.Addr6 != via {
			errs = append(errs, h.node.nl.RouteAdd(route()))
		}
	}
	return errors.Join(errs...)
}
