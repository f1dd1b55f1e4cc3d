package config

import (
	"net/netip"
	"slices"

	"github.com/smcgw/smcgw/gateway/report"
)

// maxServicesOf bounds the result of ServicesOf.
const maxServicesOf = 16

// ServicesOf lists the first TCP services of a host that rules carry by port, ignoring port
// ranges: what a test of the host can connect to.
func (c Config) ServicesOf(a netip.Addr) (list []netip.AddrPort) {
	a = a.Unmap()
	var decided []PortRange // by an earlier rule
	for _, r := range c.Policy {
		about := len(r.Match.Peers) == 0 || slices.ContainsFunc(r.Match.Peers, func(p netip.Prefix) bool { return p.Contains(a) })
		if r.Match.Proto == report.ProtoUDP || r.Match.Direction == report.DirectionServer || !about {
			continue
		}
		if r.Action == report.ActionPass && len(r.Match.Ports) == 0 && !r.outboundOnly() {
			return list // later rules do not apply to the host
		}
		for _, port := range r.Match.Ports {
			is := func(d PortRange) bool { return d.Has(port.First()) }
			if r.Action != report.ActionPass && port.Single() && !slices.ContainsFunc(decided, is) && len(list) < maxServicesOf {
				list = append(list, netip.AddrPortFrom(a, port.First()))
			}
			decided = append(decided, port)
		}
	}
	return list
}
