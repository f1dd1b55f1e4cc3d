package config

import (
	"net/netip"
	"slices"
)

// maxServicesOf bounds ServicesOf.
const maxServicesOf = 16

// ServicesOf lists TCP services of a host that rules carry by their port, the first ones:
// what a test of the host can connect to.
func (c Config) ServicesOf(a netip.Addr) (list []netip.AddrPort) {
	a = a.Unmap()
	decided := map[uint16]bool{} // by an earlier rule
	for _, r := range c.Policy {
		about := len(r.Match.Peers) == 0 || slices.ContainsFunc(r.Match.Peers, func(p netip.Prefix) bool { return p.Contains(a) })
		if r.Match.Proto == ProtoUDP || !about {
			continue
		}
		for _, port := range r.Match.Ports {
			if r.Action != ActionPass && !decided[port] && len(list) < maxServicesOf {
				list = append(list, netip.AddrPortFrom(a, port))
			}
			decided[port] = true
		}
	}
	return list
}
