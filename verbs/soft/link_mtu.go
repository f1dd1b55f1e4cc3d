package soft

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/sockaddr"
	"github.com/smcgw/smcgw/verbs"
)

// mtuHeaders is the room for packet headers that rxe leaves in an interface's MTU; two ends must derive the same path
// MTU from the same interfaces.
const mtuHeaders = 80

// pathMTU returns the largest path MTU whose packets fit the interface that has the address.
func pathMTU(addr netip.Addr) (verbs.MTU, error) {
	in, err := interfaceOf(addr)
	if err != nil {
		return 0, fmt.Errorf("interface of %v: %w", addr, err)
	}
	m := mtuWithin(in.MTU)
	if m == 0 {
		return 0, fmt.Errorf("mtu %d of interface %s: %w", in.MTU, in.Name, verbs.ErrNotSupported)
	}
	return m, nil
}

// PathMTU returns the largest path MTU whose packets the kernel would send to a host unfragmented: that of the route,
// or of a later ICMP message about the path, which the kernel forgets after ten minutes.
func PathMTU(to netip.Addr) (verbs.MTU, error) {
	level, name := unix.IPPROTO_IPV6, unix.IPV6_MTU
	if to = to.Unmap(); to.Is4() {
		level, name = unix.IPPROTO_IP, unix.IP_MTU
	}
	fd, err := unix.Socket(sockaddr.Family(to), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, sockaddr.Of(netip.AddrPortFrom(to, verbs.RoCEUDPPort))); err != nil {
		return 0, fmt.Errorf("route to %v: %w", to, err)
	}
	n, err := unix.GetsockoptInt(fd, level, name)
	if err != nil {
		return 0, fmt.Errorf("mtu of the route to %v: %w", to, err)
	}
	m := mtuWithin(n)
	if m == 0 {
		return 0, fmt.Errorf("mtu %d of the route to %v: %w", n, to, verbs.ErrNotSupported)
	}
	return m, nil
}

// mtuWithin returns the largest path MTU that fits an interface's MTU, 0 if none does.
func mtuWithin(interfaceMTU int) verbs.MTU {
	for m := verbs.MTU4096; m >= verbs.MTU256; m-- {
		if m.Bytes()+mtuHeaders <= interfaceMTU {
			return m
		}
	}
	return 0
}

// interfaceOf returns the interface that has an address. The loopback interface has the whole networks of its
// addresses.
func interfaceOf(addr netip.Addr) (*net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	plain := addr.WithZone("")
	for i := range all {
		in := &all[i]
		if zone := addr.Zone(); zone != "" && zone != in.Name {
			continue
		}
		addrs, err := in.Addrs()
		if err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", in.Name, err)
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			have, _ := netip.AddrFromSlice(n.IP)
			have = have.Unmap()
			if have == plain || in.Flags&net.FlagLoopback != 0 && plain.Is4() && have.Is4() && n.Contains(plain.AsSlice()) {
				return in, nil
			}
		}
	}
	return nil, unix.EADDRNOTAVAIL
}
