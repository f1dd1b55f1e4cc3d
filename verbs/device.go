package verbs

// Device is an RDMA device (the context of ibv_open_device). Any goroutine may call its methods.
type Device interface {
	// Name distinguishes the devices of one process in logs.
	Name() string
	// Attr returns the limits of the device, which do not change.
	Attr() DeviceAttr
	// Port returns the current attributes of the device's port (ibv_query_port, ibv_query_gid). The caller owns the slice.
	Port() PortAttr
	// Async returns the channel of the events of all objects of the device.
	Async() *AsyncChannel
	// AllocPD makes a protection domain. A device that has one domain per peer (shm) returns ErrNotSupported: the peer
	// provides its domain.
	AllocPD() (PD, error)
	// CreateCQ makes a completion queue. An unknown vector, and a depth of 0 or above DeviceAttr.MaxCQE, are ErrInvalid.
	CreateCQ(attr CQAttr) (CQ, error)
	// Drive hands the vector to the caller's event loop: the device adds its fds to p, now and later. A vector has one
	// driver at a time (else ErrBusy).
	Drive(vector int, p Poller) (Driver, error)
	// Close closes the device. Its drivers must have been closed before; later calls on the device return ErrClosed.
	Close() error
}

// PD is a protection domain: memory regions and queue pairs that may be used together. Any goroutine may call its
// methods.
type PD interface {
	// RegMR registers the caller's memory, which stays referenced until the MR is closed. Devices without
	// DeviceAttr.RemoteRegMR grant no remote access to it (ErrNotSupported). An empty buf and rights that Access.ValidMR
	// refuses are ErrInvalid; a full table is ErrNoMemory.
	RegMR(buf []byte, access Access) (MR, error)
	// AllocMR allocates size bytes of zeroed, page-aligned memory at a place that suits the device. It fails as RegMR
	// does, and with ErrNoMemory if the device or the peer's quota has no such piece.
	AllocMR(size int, access Access) (MR, error)
	// CreateQP makes a queue pair in RESET and does not keep attr. Sizes above DeviceAttr, and queues of another device,
	// domain or vector, are ErrInvalid; a transport that the device lacks is ErrNotSupported.
	CreateQP(attr *QPInitAttr) (QP, error)
	// CreateAH makes an address handle for a peer's UD queue pairs. An address that the device cannot send to is
	// ErrInvalid.
	CreateAH(attr AHAttr) (AH, error)
	// Close returns ErrBusy while the domain has memory regions, queue pairs or address handles.
	Close() error
}

// MR is a memory region. Any goroutine may call its methods. The protocol above it determines which side owns the
// contents, and when.
type MR interface {
	// Bytes returns the whole memory, which may be used until Close.
	Bytes() []byte
	// Addr returns the address of Bytes()[0] for SGEs and peers. It is not necessarily a virtual address.
	Addr() uint64
	// LKey returns the key for local SGEs.
	LKey() uint32
	// RKey returns the key for the peer, within the rights of the region.
	RKey() uint32
	// Close ends all access by key. The slice must not be used any more: the device reuses the memory once the peer cannot
	// reach it either.
	Close() error
}

// CQ is a completion queue. The loop of its vector calls its methods.
type CQ interface {
	// Poll moves up to len(wcs) completions into wcs. It returns ErrCQOverrun once completions were lost, and ErrClosed
	// after Close; n is valid even then.
	Poll(wcs []WC) (n int, err error)
	// Vector returns the vector for which the CQ was created.
	Vector() int
	// Close returns ErrBusy while a queue pair uses the CQ.
	Close() error
}

// QP is a queue pair. It belongs to its creator until it is moved to RTR; from then on (including that Modify) it
// belongs to the loop of its vector, until it is moved to RESET and belongs to its user like a new one.
//
// Posted work completes in order per queue. After an error, all later work of both queues completes with WCWRFlushErr.
// A WR occupies its queue entry until its completion, or that of a later WR of the same queue, was polled.
//
// See the IBTA specification (vol. 1, 11.2.4 and 11.4) for create, query, modify, post and destroy.
type QP interface {
	// Num returns the number that the peer sends to, 24 bits.
	Num() uint32
	// Type returns the transport.
	Type() QPType
	// State returns the current state; an error of the queue pair may have moved it to SQE or ERR since the last Modify.
	State() QPState
	// Query returns the current attributes, including State (ibv_query_qp).
	Query() QPAttr
	// Modify sets the attributes in mask, and the state if mask has QPAttrState. CheckTransition has the rules, CheckAttr
	// the ranges. On an error nothing changes. A move to RTR returns ErrRemoteGone if the device knows that the peer or
	// its queue pair is gone.
	Modify(attr *QPAttr, mask QPAttrMask) error
	// PostSend posts a send work request. It returns ErrState in RESET, INIT and RTR, ErrQueueFull if there is no free
	// entry, ErrInvalid for a request that exceeds the limits of the queue pair, and ErrNotSupported for an operation that
	// the device lacks. A bad key or range does not fail here: the request completes with an error. On an error nothing is
	// posted.
	PostSend(wr *SendWR) error
	// PostRecv posts a receive. It returns ErrState in RESET, ErrQueueFull if there is no free entry, and ErrInvalid for
	// too many SGEs.
	PostRecv(wr *RecvWR) error
	// Close destroys the queue pair immediately, without completions for what is still posted; completions already queued
	// stay in the CQ.
	Close() error
}

// RemoteMapper is implemented by queue pairs that can map the peer's memory.
type RemoteMapper interface {
	// MapRemote returns n bytes of the peer's memory at addr, to be written in place and published with SendMapped.
	// Without remote write access it returns ErrAccess, without a connected peer ErrRemoteGone. The slice is valid only
	// until the next Progress of the vector's driver; calling MapRemote again is cheap and does not allocate.
	MapRemote(rkey uint32, addr uint64, n int) ([]byte, error)
}

// RemoteReader is implemented by the queue pairs that implement RemoteMapper.
type RemoteReader interface {
	// ReadRemote returns n bytes of the peer's memory at addr, for reading back what was written there in place. Unlike
	// MapRemote it also works in ERR and when the peer is gone, until Close, and the slice is valid as long; the peer may
	// write to it meanwhile. It needs the access that MapRemote needs. Any goroutine may call it, but not during Close.
	ReadRemote(rkey uint32, addr uint64, n int) ([]byte, error)
}

// Detacher is implemented by queue pairs whose Modify and Close may take too long for a loop.
type Detacher interface {
	// Detach takes the queue pair from its owner, which must call it. Until Attach, any one goroutine at a time may call
	// Modify and Close, also to RTR and beyond, but nothing may be posted. Work posted before is still sent, and
	// completions still come to the loop; those in the CQ when the queue pair is closed may be lost. It is idempotent.
	Detach()
	// Attach returns the queue pair to the loop of its vector, which must call it.
	Attach()
}

// DatagramRoomer is implemented by UD queue pairs of devices that know when they would drop a datagram immediately.
type DatagramRoomer interface {
	// DatagramRoom returns how many datagrams can be sent to a queue pair of the peer before some are dropped for lack of
	// room on the way.
	DatagramRoom(remoteQPN uint32) int
}

// AH is an address handle: the destination of a UD message. It is immutable; any goroutine may call its methods.
type AH interface {
	// Close closes the handle. Messages already posted with it are still sent.
	Close() error
}
