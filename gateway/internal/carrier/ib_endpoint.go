package carrier

import (
	"errors"
	"fmt"

	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/rdmacm"
)

var (
	// errOtherPath means that a peer's queue pair is not at the end of the path to the peer: an ErrNoPath, since the path
	// may have changed.
	errOtherPath = fmt.Errorf("queue pair at the end of another path: %w", ErrNoPath)
	// errPartition means that packets do not pass between the partitions of both ends.
	errPartition = errors.New("queue pairs of partitions apart")
)

// fullMember is bit 15 of a P_Key: a full member reaches all members of the partition, others reach full members (IBTA
// vol. 1, 10.9.1.1).
const fullMember = 0x8000

// checkEndpoint reports why a queue pair that a peer has named must not be used: the path to the peer leads elsewhere, or
// own, the P_Key of this end, and the peer's do not pass packets of each other. Behind a router the LID is that of the
// router.
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

// pathAddress is how a port with that LID and that place of its GID reaches the end of a path; global where packets
// of the port have a global header on every path ([verbs.PortAttr]).
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
	// maxPathBits is how many LIDs a port has at most, by a mask of 7 bits.
	maxPathBits = 1 << 7
	// maxUnicast is the last LID of a port.
	maxUnicast = 0xbfff
)

// beginsAt reports whether a path begins at a port with that GID and LID. A port to which the
// administrator has given no LID yet has 0.
func beginsAt(p *rdmacm.Path, gid verbs.GID, lid uint16) bool {
	return p.SGID == gid && lid > 0 && lid <= maxUnicast && p.SLID-lid < maxPathBits
}

// checkPartition reports that an entry of a port's table of partitions is empty: the administrator has
// taken the partition back since the path was asked for.
func checkPartition(pkey uint16) error {
	if pkey&^fullMember == 0 {
		return fmt.Errorf("P_Key %#04x: %w", pkey, ErrNoPath)
	}
	return nil
}
