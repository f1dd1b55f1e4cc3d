package carrier

import (
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// ethernet is the RoCEv2 network: a GID is an address, and IP routes to it.
type ethernet struct{ env *Env }

// gidOf implements network.
func (*ethernet) gidOf(local netip.Addr, _ route) (verbs.GID, error) { return verbs.GIDOf(local), nil }

// lead implements network.
func (*ethernet) lead(_ *Request, hl *hwLink) error {
	hl.mtu = hl.mtuFrom(hl.a.port.Load().ActiveMTU)
	return nil
}

// describe implements network.
func (*ethernet) describe(hl *hwLink, qpn uint32) negotiate.CarrierOffer {
	return negotiate.CarrierOffer{RoCE: negotiate.RoCEEndpoint{
		GID: hl.gid.GID, UDPPort: hl.a.port.Load().UDPPort, MTU: uint16(hl.mtu.Bytes()), QPN: qpn, PSN: hl.psn,
	}}
}

// check implements network.
func (*ethernet) check(r *Request, _ *hwLink, to *negotiate.CarrierOffer) error {
	if !r.reachable(*to) {
		return fmt.Errorf("queue pair at another address: %w", ErrNotHere)
	}
	return nil
}

// attr implements network.
func (n *ethernet) attr(hl *hwLink, to *negotiate.CarrierOffer) verbs.QPAttr {
	cfg := n.env.Config.HW
	return verbs.QPAttr{
		DestQPNum: to.RoCE.QPN, RQPSN: to.RoCE.PSN, PathMTU: commonMTU(hl.mtu, to.RoCE.MTU),
		AH: verbs.AHAttr{
			DGID: to.RoCE.GID, SGIDIndex: hl.index, HopLimit: hwHops, Port: 1, TrafficClass: cfg.TrafficClass, SL: cfg.ServiceLevel(),
		},
	}
}

// changed implements network. There is nothing to do: IP is queried for each link.
func (*ethernet) changed(*adapter) {}

// close implements network.
func (*ethernet) close() {}
