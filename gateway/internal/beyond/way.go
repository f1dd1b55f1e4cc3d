package beyond

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// hostsBehind returns the addresses at which the gateway of the other end's host may be: the one to which this host
// translates the connection's remote address, and the next hop to it, unless that is the default router. The next hop
// is the host of a container whose address is routed.
func hostsBehind(local, remote netip.AddrPort) []netip.Addr {
	to, err := translated(local, remote)
	if err != nil { // not translated here, or the kernel does not say
		to = remote.Addr()
	}
	if hop := nextHop(to); hop.IsValid() {
		return []netip.Addr{to, hop}
	}
	return []netip.Addr{to}
}

// nextHop returns the next hop to an address, or the zero Addr if the address is a neighbour or beyond the default
// router.
func nextHop(to netip.Addr) netip.Addr {
	routes, err := netlink.RouteGetWithOptions(to.WithZone("").AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) == 0 || routes[0].Dst == nil {
		return netip.Addr{}
	}
	if bits, _ := routes[0].Dst.Mask.Size(); bits == 0 {
		return netip.Addr{}
	}
	hop, _ := netip.AddrFromSlice(routes[0].Gw)
	if hop = hop.Unmap(); hop.IsLinkLocalUnicast() { // not dialable without a zone
		return netip.Addr{}
	}
	return hop
}

// conntrackLoaded exists if the kernel tracks connections. A query without it would load the module.
const conntrackLoaded = "/proc/sys/net/netfilter/nf_conntrack_max"

// translated asks the connection tracking of this network namespace where it sends the packets of a connection that a
// client here has opened to remote.
func translated(local, remote netip.AddrPort) (netip.Addr, error) {
	if _, err := os.Stat(conntrackLoaded); err != nil {
		return netip.Addr{}, err
	}
	family, source, destination := uint8(unix.AF_INET), nl.CTA_IP_V4_SRC, nl.CTA_IP_V4_DST
	if remote.Addr().Is6() {
		family, source, destination = unix.AF_INET6, nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	tuple := nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, nil)
	ip := tuple.AddRtAttr(nl.CTA_TUPLE_IP|unix.NLA_F_NESTED, nil)
	ip.AddRtAttr(source, local.Addr().WithZone("").AsSlice())
	ip.AddRtAttr(destination, remote.Addr().WithZone("").AsSlice())
	proto := tuple.AddRtAttr(nl.CTA_TUPLE_PROTO|unix.NLA_F_NESTED, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{unix.IPPROTO_TCP})
	proto.AddRtAttr(nl.CTA_PROTO_SRC_PORT, nl.BEUint16Attr(local.Port()))
	proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, nl.BEUint16Attr(remote.Port()))
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	req.AddData(tuple)
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("connection tracking: %w", err)
	case len(messages) != 1:
		return netip.Addr{}, errTracked
	}
	return parseTracked(messages[0])
}

// errTracked means that the answer of the connection tracking has no reply address.
var errTracked = errors.New("connection tracking: no address")

// parseTracked returns the source address of the reply direction. The attributes follow a struct nfgenmsg.
func parseTracked(m []byte) (netip.Addr, error) {
	const generic = 4
	for kind, reply := range attributes(m[min(generic, len(m)):]) {
		if kind != nl.CTA_TUPLE_REPLY {
			continue
		}
		for kind, ip := range attributes(reply) {
			if kind != nl.CTA_TUPLE_IP {
				continue
			}
			for kind, value := range attributes(ip) {
				if a, ok := netip.AddrFromSlice(value); ok && (kind == nl.CTA_IP_V4_SRC && a.Is4() || kind == nl.CTA_IP_V6_SRC && a.Is6()) {
					return a, nil
				}
			}
		}
	}
	return netip.Addr{}, errTracked
}

// attributes iterates over the netlink(7) attributes in b, up to the first truncated one.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)
			if n < unix.SizeofNlAttr || n > len(b) || !yield(kind, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min(len(b), (n+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
		}
	}
}
