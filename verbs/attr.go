package verbs

// Access is the set of rights of a memory region, or of a peer on a queue pair (enum ibv_access_flags, same numbers).
// Local read is always granted.
type Access uint32

// The access rights.
const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1 // needs AccessLocalWrite on a memory region
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3 // needs AccessLocalWrite on a memory region

	// AccessRemoteInvalidate lets the peer end remote access to a memory region by SEND_WITH_INV. libibverbs has that for
	// memory windows only, so the number is ours.
	AccessRemoteInvalidate Access = 1 << 24
)

// Remote returns the rights in a that concern a peer.
func (a Access) Remote() Access {
	return a & (AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic)
}

// ValidMR reports whether a memory region may have these rights: remote writes and atomics need local write
// (ibv_reg_mr(3)).
func (a Access) ValidMR() bool {
	return a&(AccessRemoteWrite|AccessRemoteAtomic) == 0 || a&AccessLocalWrite != 0
}

// MTU is a path MTU (enum ibv_mtu, same numbers).
type MTU uint8

// The path MTUs.
const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the payload of a packet of this MTU, or 0 for an invalid MTU.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// Ops is a set of operations that a device supports.
type Ops uint32

// The operations that a device may lack.
const (
	OpSend Ops = 1 << iota // on RC and UC, and SEND_WITH_IMM
	OpRDMAWrite
	OpRDMARead
	OpAtomic
	OpSendWithInv // and LOCAL_INV
	OpUC
	OpUD
	OpWriteImm // RDMA_WRITE_WITH_IMM
	OpGSI      // queue pair 1, for management datagrams, and CQAttr.Arrived
)

// DeviceAttr describes a device (struct ibv_device_attr and ibv_port_attr). The limits are the largest values that
// creating or posting accepts.
type DeviceAttr struct {
	Ops          Ops
	Provider     string // "shm", "soft", or the driver of an adapter
	Vectors      int    // completion vectors; one event loop drives each
	MaxQP        int
	MaxQPWR      int // per queue
	MaxSGE       int // per work request
	MaxInline    int // bytes
	MaxCQE       int // per CQ
	MaxMR        int
	MaxMRSize    uint64 // bytes
	MaxMsgSize   uint64 // bytes; a UD message is one packet, see PortAttr.ActiveMTU
	MaxRDAtomic  int    // READs and atomics in flight per queue pair, in each role
	MaxAH        int
	RemoteRegMR  bool // RegMR can grant remote access; otherwise only AllocMR can
	CQHoldsBack  bool // a full CQ delays completions (and with them the peer) instead of overrunning
	RemoteMapper bool // queue pairs implement RemoteMapper
}

// CQAttr are the attributes with which a completion queue is created.
type CQAttr struct {
	Depth  int // maximum number of completions
	Vector int // whose loop owns it
	// Arrived gets a value with each completion if it has room, so that a goroutine outside of the loop can wait for
	// completions. May be nil; it must be where the device lacks OpGSI (ErrNotSupported).
	Arrived chan<- struct{}
}

// QPCap is the size of a queue pair (struct ibv_qp_cap).
type QPCap struct {
	MaxSendWR  int // entries of the send queue
	MaxRecvWR  int // entries of the receive queue
	MaxSendSGE int // per work request
	MaxRecvSGE int // per work request
	MaxInline  int // bytes of SendWR.Inline
}

// QPInitAttr are the attributes with which a queue pair is created (struct ibv_qp_init_attr). Both CQs must belong to
// the same vector.
type QPInitAttr struct {
	SendCQ   CQ
	RecvCQ   CQ
	Cap      QPCap
	Type     QPType
	SQSigAll bool // every send work request generates a completion
}

// AHAttr is the address of a peer (struct ibv_ah_attr). A device whose protection domain already determines the peer
// ignores it. On Ethernet DGID is the peer's address. On InfiniBand DLID is, and a DGID adds a global header.
type AHAttr struct {
	DGID         GID    // the peer's address
	FlowLabel    uint32 // 20 bits
	UDPPort      uint16 // RoCEv2: the peer's UDP port, 0 = RoCEUDPPort; libibverbs has no such field
	SGIDIndex    uint8  // our address, in PortAttr.GIDs
	HopLimit     uint8
	TrafficClass uint8
	SL           uint8  // service level
	SrcPathBits  uint8  // InfiniBand: added to our LID
	DLID         uint16 // InfiniBand: the peer's LID
	Port         uint8  // 0 or 1
}

// QPAttr are the attributes that Modify sets; the mask says which (struct ibv_qp_attr).
type QPAttr struct {
	State           QPState
	CurState        QPState // the state that the caller expects; another one is ErrTransition
	PathMTU         MTU
	QKey            uint32 // UD: the Q_Key that datagrams to this queue pair must have
	RQPSN           uint32 // first PSN expected, 24 bits
	SQPSN           uint32 // first PSN sent, 24 bits
	DestQPNum       uint32 // the peer's queue pair, 24 bits
	Access          Access // the peer's rights on this queue pair
	AH              AHAttr // the peer's address
	PKeyIndex       uint16 // below PortAttr.PKeys
	Port            uint8  // 1
	MaxRDAtomic     uint8  // READs and atomics in flight, as requester
	MaxDestRDAtomic uint8  // READs and atomics in flight, as responder
	MinRNRTimer     uint8  // encoded, see RNRTimer
	Timeout         uint8  // 4.096 µs << Timeout, at most 31; 0 = forever
	RetryCnt        uint8  // at most 7
	RNRRetry        uint8  // at most 7, which means forever
}

// QPAttrMask says which attributes a Modify sets (enum ibv_qp_attr_mask, same numbers).
type QPAttrMask uint32

// The attributes.
const (
	QPAttrState           QPAttrMask = 1 << 0
	QPAttrCurState        QPAttrMask = 1 << 1
	QPAttrAccess          QPAttrMask = 1 << 3
	QPAttrPKeyIndex       QPAttrMask = 1 << 4
	QPAttrPort            QPAttrMask = 1 << 5
	QPAttrQKey            QPAttrMask = 1 << 6
	QPAttrAV              QPAttrMask = 1 << 7
	QPAttrPathMTU         QPAttrMask = 1 << 8
	QPAttrTimeout         QPAttrMask = 1 << 9
	QPAttrRetryCnt        QPAttrMask = 1 << 10
	QPAttrRNRRetry        QPAttrMask = 1 << 11
	QPAttrRQPSN           QPAttrMask = 1 << 12
	QPAttrMaxRDAtomic     QPAttrMask = 1 << 13
	QPAttrMinRNRTimer     QPAttrMask = 1 << 15
	QPAttrSQPSN           QPAttrMask = 1 << 16
	QPAttrMaxDestRDAtomic QPAttrMask = 1 << 17
	QPAttrDestQPN         QPAttrMask = 1 << 20
)
