package rdmacm

import (
	"fmt"
	"strconv"
	"syscall"
)

// EventKind is the type of an event (enum rdma_cm_event_type).
type EventKind uint32

// The events.
const (
	AddrResolved    EventKind = 0
	AddrError       EventKind = 1
	RouteResolved   EventKind = 2
	RouteError      EventKind = 3
	ConnectRequest  EventKind = 4
	ConnectResponse EventKind = 5
	ConnectError    EventKind = 6
	Unreachable     EventKind = 7
	Rejected        EventKind = 8
	Established     EventKind = 9
	Disconnected    EventKind = 10
	DeviceRemoval   EventKind = 11
	MulticastJoin   EventKind = 12
	MulticastError  EventKind = 13
	AddrChange      EventKind = 14
	TimewaitExit    EventKind = 15
)

var eventNames = [...]string{
	AddrResolved: "ADDR_RESOLVED", AddrError: "ADDR_ERROR", RouteResolved: "ROUTE_RESOLVED", RouteError: "ROUTE_ERROR",
	ConnectRequest: "CONNECT_REQUEST", ConnectResponse: "CONNECT_RESPONSE", ConnectError: "CONNECT_ERROR",
	Unreachable: "UNREACHABLE", Rejected: "REJECTED", Established: "ESTABLISHED", Disconnected: "DISCONNECTED",
	DeviceRemoval: "DEVICE_REMOVAL", MulticastJoin: "MULTICAST_JOIN", MulticastError: "MULTICAST_ERROR",
	AddrChange: "ADDR_CHANGE", TimewaitExit: "TIMEWAIT_EXIT",
}

// String returns the kernel's name of the event.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "event " + strconv.FormatUint(uint64(k), 10)
}

const (
	eventHeadSize = 8 + 4 + 4 + 4
	eventUDSize   = 304 // the larger part of the union, struct rdma_ucm_ud_param
	// eventMinSize is the size written by kernels before 5.8.
	eventMinSize = eventHeadSize + eventUDSize
	// EventSize is the maximum size of an event (struct rdma_ucm_event_resp).
	EventSize = 336
)

// Event is an event of the manager (struct rdma_ucm_event_resp).
type Event struct {
	UID    uint64 // UID of the identifier, or of the listener of a new one
	ID     uint32 // for a request: the new identifier
	Kind   EventKind
	Status int32 // 0, a negative errno or, for a rejection, its reason
}

// Parse parses an answer to GetEvent. It returns the part of b with the connection parameters, if the event has any.
func (e *Event) Parse(b []byte) (param []byte, err error) {
	if len(b) < eventMinSize {
		return nil, fmt.Errorf("event of %d bytes: %w", len(b), ErrMalformed)
	}
	*e = Event{UID: native.Uint64(b), ID: native.Uint32(b[8:]), Kind: EventKind(native.Uint32(b[12:])), Status: int32(native.Uint32(b[16:]))}
	if int(e.Kind) >= len(eventNames) {
		return nil, fmt.Errorf("%v: %w", e.Kind, ErrMalformed)
	}
	return b[eventHeadSize:], nil
}

// Errno returns the errno of an event that reports an error.
func (e *Event) Errno() syscall.Errno {
	if e.Status < 0 && e.Status > -4096 {
		return syscall.Errno(-e.Status)
	}
	return 0
}

// Failure returns the error that an event reports, or nil. It does not cover rejections and disconnections by the peer,
// which the users of connections must handle.
func (e *Event) Failure() error {
	switch e.Kind {
	case Unreachable, AddrError, RouteError, ConnectError:
		return &EventError{Event: e.Kind.String(), Errno: e.Errno()}
	case DeviceRemoval:
		return ErrDeviceRemoved
	default:
		return nil
	}
}
