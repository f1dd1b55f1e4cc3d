package carrier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

const (
	// pathPart is the fraction of the handshake timeout that resolving the path to a peer may
	// take: the carriers after this one need the rest.
	pathPart = 4
	// reroutePatience is how long resolving the path of a carried connection may take. When
	// a subnet gets a new administrator, all hosts query it at once.
	reroutePatience = 10 * time.Second
)

// infiniBand is the InfiniBand network: packets follow LIDs to where the subnet administrator
// says that the peer's IPoIB address is.
type infiniBand struct {
	h     *Hardware
	host  subnet
	paths *ibPaths
}

var _ network = (*infiniBand)(nil)

func newInfiniBand(h *Hardware) network {
	host := h.env.subnet
	if host == nil {
		host = kernelSubnets{}
	}
	return &infiniBand{h: h, host: host, paths: newIBPaths(host.resolve)}
}

func (n *infiniBand) gidOf(_ netip.Addr, by route) (verbs.GID, error) {
	if by.ifindex == 0 {
		return verbs.GID{}, by.err
	}
	return n.host.gidOf(by.ifindex)
}

func (n *infiniBand) lead(r *Request, hl *hwLink) (err error) {
	ctx, cancel := context.WithTimeout(hl.a.ctx, n.h.env.Config.Limits.HandshakeTimeout/pathPart)
	defer cancel()
	if hl.way, err = n.paths.to(ctx, r.Local, r.Remote); err != nil {
		return err
	}
	if !beginsAt(&hl.way, hl.gid.GID, hl.lid) {
		n.paths.doubt(r.Local, r.Remote)
		return fmt.Errorf("path from %v, LID %#x: %w", hl.way.SGID, hl.way.SLID, ErrNoPath)
	}
	port := hl.a.port.Load()
	hl.mtu, hl.global = min(port.ActiveMTU, hl.way.MTU), port.NeedsGRH
	if hl.pkey, err = hl.a.dev.PKey(int(hl.way.PKeyIndex)); err != nil {
		return err
	}
	return checkPartition(hl.pkey)
}

func (*infiniBand) describe(hl *hwLink, qpn uint32) negotiate.CarrierOffer {
	return negotiate.CarrierOffer{IB: negotiate.IBEndpoint{
		GID: hl.gid.GID, LID: hl.lid, PKey: hl.pkey, MTU: uint16(hl.mtu.Bytes()), SL: hl.way.SL, QPN: qpn, PSN: hl.psn,
	}}
}

// check implements network. A mismatch may mean that the cached path is outdated rather than
// that the peer is wrong.
func (n *infiniBand) check(r *Request, hl *hwLink, to *negotiate.CarrierOffer) error {
	err := checkEndpoint(&hl.way, hl.pkey, &to.IB)
	if err == nil {
		return nil
	}
	n.paths.doubt(r.Local, r.Remote)
	return errors.Join(ErrNotHere, err)
}

func (*infiniBand) attr(hl *hwLink, to *negotiate.CarrierOffer) verbs.QPAttr {
	return verbs.QPAttr{
		DestQPNum: to.IB.QPN, RQPSN: to.IB.PSN, PathMTU: commonMTU(hl.mtu, to.IB.MTU), PKeyIndex: hl.way.PKeyIndex,
		AH: pathAddress(&hl.way, hl.lid, hl.index, hl.global),
	}
}

// changed implements network: carried connections leave paths that have changed. A connection
// whose path gets no answer stays; its queue pair fails if the path is gone.
func (n *infiniBand) changed(a *adapter) {
	n.paths.forget()
	other := map[*Link]bool{}
	for _, l := range a.linked() {
		ctx, cancel := context.WithTimeout(a.ctx, reroutePatience)
		way, err := n.paths.to(ctx, l.of.Local, l.of.Remote)
		cancel()
		if err == nil && !samePath(way, l.peer.(*hwLink).way) {
			other[l] = true
		}
	}
	if len(other) > 0 {
		n.h.env.Log.Info("path in the subnet changed: its connections go on over the relay", "device", a.name, "connections", len(other))
		n.h.env.Vacate(n.h.Kind(), func(l *Link) bool { return other[l] }, false)
	}
}

func (n *infiniBand) close() { n.paths.close() }
