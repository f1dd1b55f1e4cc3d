package carrier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

var (
	// errOtherPath means that the queue pair named by a peer is not at the end of the path to
	// the peer. It is an ErrNoPath, since the path may have changed.
	errOtherPath = fmt.Errorf("queue pair at the end of another path: %w", ErrNoPath)
	// errPartition means that the partitions of the two ends cannot exchange packets.
	errPartition = errors.New("queue pairs of partitions apart")
)

// fullMember is bit 15 of a P_Key: a full member reaches all members of the partition, others
// reach only full members (IBTA vol. 1, 10.9.1.1).
const fullMember = 0x8000

// checkEndpoint returns why a queue pair named by a peer must not be used: the path to the
// peer leads elsewhere, or the partitions of own (this end's P_Key) and of the peer's P_Key
// cannot exchange packets. With a router in between, the LID is the router's, so it is not
// compared.
func checkEndpoint(p *rdmacm.Path, own uint16, at *negotiate.IBEndpoint) error {
	switch {
	case p.DGID != at.GID:
		return fmt.Errorf("%v instead of %v: %w", verbs.GID(at.GID), p.DGID, errOtherPath)
	case !p.Global() && p.DLID != at.LID:
		return fmt.Errorf("LID %#x instead of %#x: %w", at.LID, p.DLID, errOtherPath)
	case (own^at.PKey)&^fullMember != 0, (own|at.PKey)&fullMember == 0:
		return fmt.Errorf("P_Keys %#04x and %#04x: %w", own, at.PKey, errPartition)
	}
	return nil
}

// pathAddress returns the address vector by which a port with this LID and GID index reaches
// the end of a path. global: packets of the port have a global header on every path
// ([verbs.PortAttr]).
func pathAddress(p *rdmacm.Path, lid uint16, gid uint8, global bool) verbs.AHAttr {
	a := verbs.AHAttr{DLID: p.DLID, SL: p.SL, SrcPathBits: uint8(p.SLID - lid), Port: 1}
	if global || p.Global() {
		a.DGID, a.SGIDIndex, a.FlowLabel, a.HopLimit, a.TrafficClass = p.DGID, gid, p.FlowLabel, p.HopLimit, p.TrafficClass
	}
	return a
}

// samePath reports whether packets take both paths alike.
func samePath(a, b rdmacm.Path) bool {
	a.Rate, a.PacketLifetime = b.Rate, b.PacketLifetime
	return a == b
}

const (
	// maxPathBits is the maximum number of LIDs of a port, given by a mask of 7 bits.
	maxPathBits = 1 << 7
	// maxUnicast is the highest unicast LID.
	maxUnicast = 0xbfff
)

// beginsAt reports whether a path begins at the port with this GID and LID. A LID of 0 means
// that the administrator has not assigned one yet.
func beginsAt(p *rdmacm.Path, gid verbs.GID, lid uint16) bool {
	return p.SGID == gid && lid > 0 && lid <= maxUnicast && p.SLID-lid < maxPathBits
}

// checkPartition returns an error if an entry of a port's partition table is empty: the
// administrator has revoked the partition since the path was resolved.
func checkPartition(pkey uint16) error {
	if pkey&^fullMember == 0 {
		return fmt.Errorf("P_Key %#04x: %w", pkey, ErrNoPath)
	}
	return nil
}

// subnet gives access to the InfiniBand subnets that the host is on.
type subnet interface {
	// gidOf returns the GID of the port of an IPoIB network device, or zero if it is not one.
	gidOf(ifindex int) (verbs.GID, error)
	// resolve resolves the path between two IPoIB addresses.
	resolve(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error)
}

// kernelSubnets asks the kernel of this host.
type kernelSubnets struct{}

// gidOf implements subnet.
func (kernelSubnets) gidOf(ifindex int) (verbs.GID, error) { return sysfs.IPoIB(ifindex) }

// resolve implements subnet.
func (kernelSubnets) resolve(ctx context.Context, local, remote netip.Addr) (rdmacm.Path, error) {
	return rdmacm.Resolve(ctx, local, remote)
}
