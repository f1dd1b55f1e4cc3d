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
	// ErrNoDevice means that the host has no adapter of that name, or gives no access to it.
	ErrNoDevice = errors.New("no RDMA adapter")
)

// Library is libibverbs, or what stands for it in tests.
type Library interface {
	// Devices lists the names of the adapters of the host.
	Devices() ([]string, error)
	// Open opens an adapter.
	Open(name string) (Context, error)
}

// DeviceAttr describes an adapter (struct ibv_device_attr, and what struct
// ibv_device and ibv_context tell).
type DeviceAttr struct {
	Transport                          int // enum ibv_transport_type
	Ports, Vectors                     int
	Atomic                             bool
	MaxQP, MaxQPWR, MaxSGE, MaxSGERead int
	MaxCQE, MaxMR, MaxAH               int
	MaxRDAtomicOut, MaxRDAtomicIn      int
	MaxMRSize                          uint64
}

// QPInit is what a queue pair is created with (struct ibv_qp_init_attr). ID is
// what events of the queue pair carry.
type QPInit struct {
	PD             PD
	ID             uint64
	SendCQ, RecvCQ CQ
	Cap            verbs.QPCap
	Type           verbs.QPType
	SQSigAll       bool
}

// Event is an asynchronous event. ID is that of the object, Port that of an
// event which concerns a port.
type Event struct {
	Type verbs.EventType
	ID   uint64
	Port uint8
}

// Context is an open adapter (struct ibv_context). It has more than seven
// methods because it is the functions of the library that the device needs: a
// fake of it is a whole adapter anyway. Errors are those of the system calls, unwrapped. Any goroutine
// may call its methods; those on one object one at a time.
type Context interface {
	// Close ends the context; no object of it may be left.
	Close() error
	// Query describes the adapter.
	Query() (DeviceAttr, error)
	// QueryPort describes a port with its table of GIDs. UDPPort is left out.
	QueryPort(port uint8) (verbs.PortAttr, error)
	// QueryPKey reads an entry of a port's table of partitions.
	QueryPKey(port uint8, index int) (uint16, error)

	AllocPD() (PD, error)
	DeallocPD(pd PD) error
	// RegMR registers memory, which stays where it is until DeregMR.
	RegMR(pd PD, buf []byte, access verbs.Access) (mr MR, lkey, rkey uint32, err error)
	DeregMR(mr MR) error

	// CreateChannel makes a completion channel whose fd never blocks.
	CreateChannel() (ch Channel, fd int, err error)
	DestroyChannel(ch Channel) error
	// CreateCQ makes a completion queue for at least depth completions and
	// returns for how many; id is what its events carry.
	CreateCQ(depth int, id uint64, ch Channel, vector int) (cq CQ, granted int, err error)
	DestroyCQ(cq CQ) error
	// Notify arms completion queues: the next completion, or the next solicited
	// one, of each raises an event.
	Notify(cqs []CQ, solicited bool) error
	// Events takes events of armed completion queues, acknowledges them, and
	// puts the ids of the queues into ids.
	Events(ch Channel, ids []uint64) int
	// Poll takes completions.
	Poll(cq CQ, wcs []Completion) int

	CreateQP(init *QPInit) (qp QP, num uint32, err error)
	ModifyQP(qp QP, attr *verbs.QPAttr, mask verbs.QPAttrMask) error
	QueryQPState(qp QP) (verbs.QPState, error)
	DestroyQP(qp QP) error

	CreateAH(pd PD, attr *verbs.AHAttr) (AH, error)
	DestroyAH(ah AH) error

	// Post posts a batch and returns how many requests have Err set: those that
	// the provider refused, and those after them in their queue.
	Post(b *Batch) (refused int)

	// AsyncFD is readable when there is an asynchronous event. It never blocks.
	AsyncFD() int
	// AsyncEvent takes an asynchronous event and acknowledges it; EAGAIN if there is none.
	AsyncEvent() (Event, error)
}
