package proof

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/internal/netdev"
	"github.com/smcgw/smcgw/ebpf/legs"
)

// ends are the addresses of a proof: one of the host on the device, and one behind the device that no packet ever
// reaches.
type ends struct {
	index         int
	device        string
	local, remote netip.Addr
	forget        func() // undoes what was done for remote
}

// absentMAC is the link address of remote on devices that need one.
var absentMAC = net.HardwareAddr{0x02, 'S', 'M', 'G', 'W', 0x03}

// ends chooses the addresses of a proof. The remote end is a neighbour that does not exist, so that a proof needs no
// other host. If the device's networks have no free address for one, it is a router.
func (p *Prover) ends(index int, v6 bool) (e ends, err error) {
	l, err := p.Netlink.LinkByIndex(index)
	if err != nil {
		return e, fmt.Errorf("device: %w", err)
	}
	e.index, e.device, e.forget = index, l.Attrs().Name, func() {}
	family := legs.Family(v6)
	addrs, err := netdev.Whole(func() ([]netlink.Addr, error) { return p.Netlink.AddrList(l, family) })
	if err != nil {
		return e, fmt.Errorf("addresses of %s: %w", e.device, err)
	}
	for i := range addrs {
		a, prefix, ok := usable(&addrs[i])
		if !ok {
			continue
		}
		e.local = a
		if peer := addrs[i].Peer; peer != nil && !peer.IP.Equal(addrs[i].IP) {
			e.remote, _ = netip.AddrFromSlice(peer.IP)
			e.remote = e.remote.Unmap()
			return e, nil
		}
		if e.remote, err = p.absentHost(l, family, a, prefix); err != nil {
			return e, err
		}
		if e.remote.IsValid() {
			return e, p.acquaint(l, family, &e)
		}
	}
	if !e.local.IsValid() {
		return e, Error{Unproved}
	}
	return e, p.router(index, family, &e)
}

// usable reports whether connections can be made from an address, and returns it with its network.
func usable(a *netlink.Addr) (netip.Addr, netip.Prefix, bool) {
	ip, ok := netip.AddrFromSlice(a.IP)
	ip = ip.Unmap()
	if !ok || !ip.IsGlobalUnicast() || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
		return ip, netip.Prefix{}, false
	}
	ones, _ := a.Mask.Size()
	return ip, netip.PrefixFrom(ip, ones).Masked(), true
}

// absentTries is how many consecutive addresses of a network are tried, from a random one on: all of a small network.
const absentTries = 16

// absentHost returns an address of a network that is neither ours nor that of a known neighbour, or none if there is no
// free one.
func (p *Prover) absentHost(l netlink.Link, family int, own netip.Addr, prefix netip.Prefix) (netip.Addr, error) {
	if own.BitLen()-prefix.Bits() < 2 {
		return netip.Addr{}, nil
	}
	known, err := p.Netlink.NeighList(l.Attrs().Index, family)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("neighbours of %s: %w", l.Attrs().Name, err)
	}
	taken := map[netip.Addr]bool{own: true, prefix.Addr(): true, last(prefix): true}
	if gw, ok := p.gateway(l.Attrs().Index, own.Is6()); ok { // there may have been no traffic to it yet
		taken[gw] = true
	}
	for i := range known {
		if a, ok := netip.AddrFromSlice(known[i].IP); ok {
			taken[a.Unmap()] = true
		}
	}
	from := rand.Uint64()
	for i := range uint64(absentTries) {
		a := within(prefix, from+i)
		if !taken[a] && !p.Entries.Own(a) {
			return a, nil
		}
	}
	return netip.Addr{}, nil
}

// gateway returns the default router of a device, if there is one.
func (p *Prover) gateway(index int, v6 bool) (netip.Addr, bool) {
	far := net.IPv4(192, 0, 2, 1) // RFC 5737, RFC 3849
	if v6 {
		far = net.ParseIP("2001:db8::1")
	}
	routes, err := p.Netlink.RouteGetWithOptions(far, &netlink.RouteGetOptions{OifIndex: index})
	if err != nil || len(routes) == 0 {
		return netip.Addr{}, false
	}
	a, ok := netip.AddrFromSlice(routes[0].Gw)
	return a.Unmap(), ok
}

// within returns the address of a network whose host part is the low bits of n.
func within(p netip.Prefix, n uint64) netip.Addr {
	b := p.Addr().AsSlice()
	host := min(p.Addr().BitLen()-p.Bits(), 64)
	for i := len(b) - 1; host > 0; i-- {
		bits := min(host, 8)
		b[i] |= byte(n) & byte(1<<bits-1)
		n >>= 8
		host -= bits
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// last returns the last address of a network, which is the broadcast address in IPv4.
func last(p netip.Prefix) netip.Addr { return within(p, ^uint64(0)) }

// acquaint makes remote a neighbour for the duration of the proof. The entry is an ordinary one, which the kernel
// forgets should it remain.
func (p *Prover) acquaint(l netlink.Link, family int, e *ends) error {
	if l.Attrs().EncapType != "ether" || l.Attrs().RawFlags&unix.IFF_NOARP != 0 {
		return nil
	}
	n := &netlink.Neigh{
		LinkIndex: l.Attrs().Index, Family: family, State: netlink.NUD_REACHABLE, IP: e.remote.AsSlice(), HardwareAddr: absentMAC,
	}
	if err := p.Netlink.NeighAdd(n); err != nil {
		return fmt.Errorf("neighbour for a proof: %w", err)
	}
	e.forget = func() { _ = p.Netlink.NeighDel(n) }
	return nil
}

// router uses a router of the device as the remote end.
func (p *Prover) router(index, family int, e *ends) error {
	routes, err := netdev.Whole(func() ([]netlink.Route, error) {
		return p.Netlink.RouteListFiltered(family, &netlink.Route{LinkIndex: index}, netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return fmt.Errorf("routes of %s: %w", e.device, err)
	}
	for i := range routes {
		a, ok := netip.AddrFromSlice(routes[i].Gw)
		if a = a.Unmap(); ok && a.IsGlobalUnicast() && a.Is4() == e.local.Is4() {
			e.remote = a
			return nil
		}
	}
	return Error{Unproved}
}
