package soft

import (
	"net/netip"

	"github.com/smcgw/smcgw/verbs/soft/wire"
)

// path is the path of datagrams from one vector to one vector of a peer.
type path struct {
	local int
	lane  uint8
	dst   netip.AddrPort
	icrc  wire.ICRC // of datagrams sent on it
	rtt   roundTrip // last measurement by any of its queue pairs
}

type pathKey struct {
	local int
	lane  uint8
	dst   netip.AddrPort
}

// pathLimit bounds the paths and the flows that a vector caches; beyond it, the cache is cleared.
const pathLimit = 4096

// pathTo returns the path to a queue pair of the peer.
func (v *vector) pathTo(a *av, qpn uint32) *path {
	k := pathKey{local: a.local, lane: uint8(qpn % lanes), dst: a.dst}
	if p := v.paths[k]; p != nil {
		return p
	}
	if len(v.paths) >= pathLimit {
		clear(v.paths)
	}
	sport := v.link.sourcePort(k.local, k.lane)
	src := netip.AddrPortFrom(v.dev.cfg.Addrs[k.local], sport)
	p := &path{local: k.local, lane: k.lane, dst: k.dst, icrc: newICRC(src, k.dst)}
	if sport != 0 { // otherwise the next call tries again
		v.paths[k] = p
	}
	return p
}

func newICRC(src, dst netip.AddrPort) wire.ICRC {
	return wire.NewICRC(wire.Flow{
		Src: src.Addr().WithZone(""), Dst: dst.Addr().WithZone(""), SrcPort: src.Port(), DstPort: dst.Port(),
	})
}

type flowKey struct {
	local int
	src   netip.AddrPort
}

// verifier returns the ICRC for datagrams from a source. It caches the last one, since the datagrams of a train have
// the same source.
func (v *vector) verifier(d *datagram) *wire.ICRC {
	k := flowKey{d.local, d.src}
	if v.lastFlow != nil && v.lastKey == k {
		return v.lastFlow
	}
	c := v.flows[k]
	if c == nil {
		if len(v.flows) >= pathLimit {
			clear(v.flows)
		}
		icrc := newICRC(d.src, netip.AddrPortFrom(v.dev.cfg.Addrs[d.local], v.dev.cfg.UDPPort))
		c = &icrc
		v.flows[k] = c
	}
	v.lastKey, v.lastFlow = k, c
	return c
}
