package verbs

import "slices"

// PortState is the state of a port (enum ibv_port_state, same numbers).
type PortState uint8

// The states of a port. Software devices know DOWN and ACTIVE only.
const (
	PortDown   PortState = 1
	PortInit   PortState = 2 // InfiniBand: the subnet manager has not seen it yet
	PortArmed  PortState = 3
	PortActive PortState = 4
)

var portStateNames = [...]string{"", "DOWN", "INIT", "ARMED", "ACTIVE"}

// String returns the standard name of the state.
func (s PortState) String() string { return nameOf(portStateNames[:], int(s), "PORT") }

// RoCEUDPPort is the UDP port on which adapters receive RoCEv2 (IANA: roce).
const RoCEUDPPort = 4791

// PortAttr describes the only port of a device (struct ibv_port_attr). Its
// number is 1.
type PortAttr struct {
	State     PortState
	MaxMTU    MTU        // the largest that the device can send
	ActiveMTU MTU        // the largest that the network takes now
	GIDs      []GIDEntry // by SGID index; none on a device without addresses (shm)
	UDPPort   uint16     // RoCEv2: where packets arrive; 0 on a device without UDP
	LinkLayer LinkLayer
	PKeys     int    // entries of the table of partitions; 1 on a software device
	LID       uint16 // InfiniBand: the address that the subnet manager gave
	NeedsGRH  bool   // every address has a DGID, within the subnet too (IBV_QPF_GRH_REQUIRED)
}

// GIDEntry is an entry of a port's GID table (struct ibv_gid_entry). A table has holes, whose GID is zero, and may have
// the same address several times, with different types.
type GIDEntry struct {
	GID     GID
	Type    GIDType
	Ifindex int // network device that has the address; 0: not known
}

// Empty reports whether the entry is a hole.
func (e GIDEntry) Empty() bool { return e.GID == GID{} }

// maxGIDs is how many entries of a GID table an [AHAttr] can refer to.
const maxGIDs = 1 << 8

// GIDIndex returns the first index of an address in a GID table, or -1 if an [AHAttr] can refer to none. A nonzero
// ifindex asks for the address of that network device; 0, there or in the table, means unknown and matches any. RoCE v1
// entries are ignored, since their packets cannot leave the subnet.
func GIDIndex(table []GIDEntry, gid GID, ifindex int) int {
	return slices.IndexFunc(table[:min(len(table), maxGIDs)], func(e GIDEntry) bool {
		return e.GID == gid && !e.Empty() && e.Type != GIDTypeRoCEv1 && (ifindex == 0 || e.Ifindex == 0 || e.Ifindex == ifindex)
	})
}

// GIDType is how packets with a GID are framed (enum ibv_gid_type, same numbers).
type GIDType uint8

// The types of a GID.
const (
	GIDTypeIB     GIDType = iota // InfiniBand
	GIDTypeRoCEv1                // its own EtherType, not routable
	GIDTypeRoCEv2                // UDP
)

var gidTypeNames = [...]string{"IB", "RoCE v1", "RoCE v2"}

// String returns the name of the type as the kernel prints it.
func (t GIDType) String() string { return nameOf(gidTypeNames[:], int(t), "GID_TYPE") }

// LinkLayer is what a port is connected to (IBV_LINK_LAYER_*, same numbers).
type LinkLayer uint8

// The link layers.
const (
	LinkLayerUnspecified LinkLayer = iota // shared memory
	LinkLayerInfiniBand
	LinkLayerEthernet
)

var linkLayerNames = [...]string{"Unspecified", "InfiniBand", "Ethernet"}

// String returns the name of the link layer as the RDMA tools print it.
func (l LinkLayer) String() string { return nameOf(linkLayerNames[:], int(l), "LINK_LAYER") }
