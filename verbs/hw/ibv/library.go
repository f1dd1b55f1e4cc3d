package ibv

import (
	"errors"

	"github.com/smcgw/smcgw/verbs"
)

// ClassDir is where the kernel describes its adapters.
const ClassDir = "/sys/class/infiniband"

// Errors of Load and Open, besides those of the system calls.
var (
	// ErrLibraryAbsent means that libibverbs.so.1 cannot be loaded; the dynamic linker's text says why.
	ErrLibraryAbsent = errors.New("no RDMA library (package libibverbs1)")
	// ErrProviderAbsent means that the library has no driver for an adapter that the kernel has.
	ErrProviderAbsent = errors.New("no RDMA provider for the adapter (package ibverbs-providers)")
	// ErrNoDevice means that the host has no adapter of that name, or grants no access to it.
	ErrNoDevice = errors.New("no RDMA adapter")
)

// Library is libibverbs, or a fake in tests.
type Library interface {
	// Devices lists the names of the adapters of the host.
	Devices() ([]string, error)
	// Open opens an adapter.
	Open(name string) (Context, error)
}

// DeviceAttr describes an adapter (struct ibv_device_attr, and parts of struct ibv_device and ibv_context).
type DeviceAttr struct {
	Transport                          int // enum ibv_transport_type
	Ports, Vectors                     int
	Atomic                             bool
	MaxQP, MaxQPWR, MaxSGE, MaxSGERead int
	MaxCQE, MaxMR, MaxAH               int
	MaxRDAtomicOut, MaxRDAtomicIn      int
	MaxMRSize                          uint64
}

// QPInit holds the attributes with which a queue pair is created (struct ibv_qp_init_attr). Events of the queue pair
// carry ID.
type QPInit struct {
	PD             PD
	ID             uint64
	SendCQ, RecvCQ CQ
	Cap            verbs.QPCap
	Type           verbs.QPType
	SQSigAll       bool
}

// Event is an asynchronous event. ID is that of the object, Port the port of an event that concerns a port.
type Event struct {
	Type verbs.EventType
	ID   uint64
	Port uint8
}

// Context is an open adapter (struct ibv_context). It has many methods because they are the functions of the library
// that the device needs; a fake of it is a whole adapter anyway. Errors are those of the system calls, not wrapped. Any
// goroutine may call its methods, but not two at a time on one object.
type Context interface {
	// Close closes the context; all its objects must be closed.
	Close() error
	// Query returns the attributes of the adapter.
	Query() (DeviceAttr, error)
	// QueryPort returns the attributes of a port with its GID table, without UDPPort.
	QueryPort(port uint8) (verbs.PortAttr, error)
	// QueryPKey returns an entry of a port's P_Key table.
	QueryPKey(port uint8, index int) (uint16, error)

	AllocPD() (PD, error)
	DeallocPD(pd PD) error
	// RegMR registers memory, which must not move until DeregMR.
	RegMR(pd PD, buf []byte, access verbs.Access) (mr MR, lkey, rkey uint32, err error)
	DeregMR(mr MR) error

	// CreateChannel makes a completion channel whose fd never blocks.
	CreateChannel() (ch Channel, fd int, err error)
	DestroyChannel(ch Channel) error
	// CreateCQ makes a completion queue for at least depth completions and returns its size; its events carry id.
	CreateCQ(depth int, id uint64, ch Channel, vector int) (cq CQ, granted int, err error)
	DestroyCQ(cq CQ) error
	// Notify arms completion queues: the next completion of each raises an event.
	Notify(cqs []CQ) error
	// Events takes events of armed completion queues, acknowledges them, and stores the ids of the queues in ids.
	Events(ch Channel, ids []uint64) int
	// Poll takes completions.
	Poll(cq CQ, wcs []Completion) int

	CreateQP(init *QPInit) (qp QP, num uint32, err error)
	ModifyQP(qp QP, attr *verbs.QPAttr, mask verbs.QPAttrMask) error
	QueryQPState(qp QP) (verbs.QPState, error)
	DestroyQP(qp QP) error

	CreateAH(pd PD, attr *verbs.AHAttr) (AH, error)
	DestroyAH(ah AH) error

	// Post posts a batch and returns how many requests have Err set: those that the provider refused, and those after them
	// in their queue.
	Post(b *Batch) (refused int)

	// AsyncFD is readable when there is an asynchronous event. It never blocks.
	AsyncFD() int
	// AsyncEvent takes an asynchronous event and acknowledges it; EAGAIN if there is none.
	AsyncEvent() (Event, error)
}
