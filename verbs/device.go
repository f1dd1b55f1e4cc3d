package verbs

// Device is an RDMA device. Its methods may be called by any goroutine.
// It is the context of libibverbs (ibv_open_device).
type Device interface {
	// Name tells devices of one process apart in logs.
	Name() string
	// Attr returns the limits of the device. They do not change.
	Attr() DeviceAttr
	// Port describes the device's port as it is now (ibv_query_port,
	// ibv_query_gid). The caller owns the slice.
	Port() PortAttr
	// Async carries the events of all objects of the device.
	Async() *AsyncChannel
	// AllocPD makes a protection domain. A device whose domains belong to
	// peers (shm) returns ErrNotSupported: there the peer has the domain.
	AllocPD() (PD, error)
	// CreateCQ makes a completion queue. A vector that the device does not have
	// and a depth of 0 or above DeviceAttr.MaxCQE are ErrInvalid.
	CreateCQ(attr CQAttr) (CQ, error)
	// Drive gives the vector to the caller's event loop: the device adds its
	// fds to p, now and later. A vector has one driver at a time (else ErrBusy).
	Drive(vector int, p Poller) (Driver, error)
	// Close ends the device. Its drivers must have been closed before; calls
	// on the device afterwards return ErrClosed.
	Close() error
}

// PD is a protection domain: memory regions and queue pairs that belong
// together. Its methods may be called by any goroutine.
type PD interface {
	// RegMR registers the caller's memory, which stays referenced until the MR
	// is closed. Devices without DeviceAttr.RemoteRegMR grant no remote access
	// to it (ErrNotSupported). An empty buf and rights that Access.ValidMR
	// refuses are ErrInvalid, a full table is ErrNoMemory.
	RegMR(buf []byte, access Access) (MR, error)
	// AllocMR allocates size bytes of zeroed memory where the device wants it,
	// page aligned. It fails as RegMR does, and with ErrNoMemory where the
	// device or the peer's quota has no such piece.
	AllocMR(size int, access Access) (MR, error)
	// CreateQP makes a queue pair in RESET and keeps nothing of attr. Sizes above
	// DeviceAttr, and queues of another device, domain or vector, are
	// ErrInvalid; a transport that the device lacks is ErrNotSupported.
	CreateQP(attr *QPInitAttr) (QP, error)
	// CreateSRQ makes a shared receive queue for queue pairs of this domain.
	CreateSRQ(attr SRQInitAttr) (SRQ, error)
	// CreateAH makes the address of a peer's UD queue pairs. An address that the
	// device cannot send to is ErrInvalid.
	CreateAH(attr AHAttr) (AH, error)
	// Close returns ErrBusy while the domain has memory regions, queue pairs,
	// shared receive queues or address handles.
	Close() error
}

// MR is a memory region. Its methods may be called by any goroutine. The
// protocol above says which side owns the contents, and when.
type MR interface {
	// Bytes is the whole memory; it may be used until Close.
	Bytes() []byte
	// Addr is the address of Bytes()[0] as SGEs and peers name it. It is not
	// necessarily a virtual address.
	Addr() uint64
	// LKey is the key for SGEs of this side.
	LKey() uint32
	// RKey is the key for the peer, within the rights of the region.
	RKey() uint32
	// Close ends all access by key. The slice must not be used any more: the
	// device recycles the memory once the peer cannot reach it either.
	Close() error
}

// CQ is a completion queue. Its methods are called by the loop of its vector.
type CQ interface {
	// Poll moves up to len(wcs) completions into wcs. It returns ErrCQOverrun
	// once completions were lost and ErrClosed after Close; n is valid even then.
	Poll(wcs []WC) (n int, err error)
	// ReqNotify arms the CQ: the next completion (solicited: the next receive
	// completion of a message sent with SendSolicited, or any error) puts one
	// event into the CQ's channel. Poll after arming: what was already queued
	// gives no event.
	ReqNotify(solicited bool) error
	// Resize changes the number of completions the CQ holds; what is queued
	// stays. A depth below that number is ErrInvalid.
	Resize(depth int) error
	// Vector is the vector the CQ was created for.
	Vector() int
	// Close returns ErrBusy while a queue pair uses the CQ.
	Close() error
}

// QP is a queue pair. Until it is moved to RTR it belongs to its creator, from
// then on (that Modify included) to the loop of its vector, until it is moved to
// RESET: then it belongs to its user as to a creator.
//
// Posted work completes in order per queue. After an error all later work of
// both queues completes with WCWRFlushErr. A WR occupies its queue entry until
// its completion, or that of a later WR of the same queue, was polled.
//
// It is the queue pair of the IBTA specification (vol. 1, 11.2.4 and 11.4): create,
// query, modify, post, destroy.
type QP interface {
	// Num is the number that the peer sends to, 24 bits.
	Num() uint32
	// Type is the transport.
	Type() QPType
	// State is the state now; an error of the queue pair may have moved it to
	// SQE or ERR since the last Modify.
	State() QPState
	// Query returns the attributes in force, State among them (ibv_query_qp).
	Query() QPAttr
	// Modify sets the attributes in mask, with QPAttrState the state too;
	// CheckTransition has the rules, CheckAttr the ranges. Nothing changes on
	// error. To RTR it returns ErrRemoteGone where the device knows that the
	// peer or its queue pair is not there.
	Modify(attr *QPAttr, mask QPAttrMask) error
	// PostSend adds a send work request. It returns ErrState in RESET, INIT and
	// RTR, ErrQueueFull without a free entry, ErrInvalid for a request that
	// breaks the limits of the queue pair, and ErrNotSupported for an operation
	// that the device lacks. A bad key or range is no error here: the request
	// completes with one. An error posts nothing.
	PostSend(wr *SendWR) error
	// PostRecv adds a receive. It returns ErrState in RESET, ErrQueueFull without
	// a free entry, and ErrInvalid for too many SGEs or beside an SRQ.
	PostRecv(wr *RecvWR) error
	// Close destroys the queue pair at once, without completions for what is
	// still posted; completions already queued stay in the CQ.
	Close() error
}

// RemoteMapper is implemented by queue pairs that can show the peer's memory.
type RemoteMapper interface {
	// MapRemote returns n bytes of the peer's memory at addr, to be written in
	// place and published with SendMapped. It needs remote write access, else it
	// returns ErrAccess, and a connected peer, else ErrRemoteGone. The slice is
	// valid until the next Progress of the vector's driver and must
	// not be kept longer; asking again is cheap and does not allocate.
	MapRemote(rkey uint32, addr uint64, n int) ([]byte, error)
}

// RemoteReader is implemented by the queue pairs that implement RemoteMapper.
type RemoteReader interface {
	// ReadRemote returns n bytes of the peer's memory at addr, for reading:
	// what was written there in place and may be needed again. Unlike MapRemote
	// it works in ERR and when the peer is gone, until Close, and the slice is
	// valid as long; the peer may write to it meanwhile. It needs the access
	// that MapRemote needs. Any goroutine may call it, but not during Close.
	ReadRemote(rkey uint32, addr uint64, n int) ([]byte, error)
}

// Detacher is implemented by queue pairs whose Modify and Close a loop may not have the
// time for.
type Detacher interface {
	// Detach takes the queue pair from its owner, which calls it. Until Attach, any one
	// goroutine at a time may call Modify and Close, also to RTR and beyond; nothing is
	// posted. What was posted before goes out, and completions still come to the loop:
	// those in the CQ when the queue pair is closed may be forgotten. It is idempotent.
	Detach()
	// Attach gives the queue pair to the loop of its vector, which calls it.
	Attach()
}

// DatagramRoomer is implemented by UD queue pairs of devices that know when they
// would drop a datagram at once.
type DatagramRoomer interface {
	// DatagramRoom returns how many datagrams a queue pair of the peer's can be
	// sent now before some are dropped for want of room on the way.
	DatagramRoom(remoteQPN uint32) int
}

// SRQ is a shared receive queue: the receives of several queue pairs of one
// vector. Until one of its queue pairs is moved to RTR it belongs to its
// creator, from then on to the loop of its vector.
type SRQ interface {
	// PostRecv posts a receive. It occupies its entry until it is taken by a
	// message or by an error of the queue pair that had taken it.
	PostRecv(wr *RecvWR) error
	// Modify sets the attributes in mask. MaxWR below the number of posted
	// receives is ErrInvalid.
	Modify(attr SRQAttr, mask SRQAttrMask) error
	// Query returns the attributes in force; Limit is 0 after the event.
	Query() SRQAttr
	// Close returns ErrBusy while a queue pair uses the SRQ.
	Close() error
}

// AH is an address handle: where a UD message goes. It is immutable, and its
// methods may be called by any goroutine.
type AH interface {
	// Attr is what the handle was created with.
	Attr() AHAttr
	// Close ends the handle. Messages already posted with it are still sent.
	Close() error
}
