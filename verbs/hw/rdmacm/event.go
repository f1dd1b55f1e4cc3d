package rdmacm

import (
	"fmt"
	"strconv"
	"syscall"
)

// EventKind says what has happened (enum rdma_cm_event_type).
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

// String returns the name that the kernel has for the event.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "event " + strconv.FormatUint(uint64(k), 10)
}

const (
	eventHeadSize = 8 + 4 + 4 + 4
	eventUDSize   = 304 // the larger part of the union, struct rdma_ucm_ud_param
	// eventMinSize is what kernels before 5.8 write.
	eventMinSize = eventHeadSize + eventUDSize
	// EventSize is how many bytes an event has at most (struct rdma_ucm_event_resp).
	EventSize = 336
)

// Event is what the manager has to say (struct rdma_ucm_event_resp).
type Event struct {
	UID    uint64 // of the identifier, or of the listener that a new one belongs to
	ID     uint32 // of a request: the new identifier
	Kind   EventKind
	Status int32 // 0, a negative errno or, of a rejection, its reason
}

// Parse reads an answer to GetEvent. It returns the part of b that has the parameters of a connection, where the event
// has any.
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

// Errno is the cause of an event that tells of an error.
func (e *Event) Errno() syscall.Errno {
	if e.Status < 0 && e.Status > -4096 {
		return syscall.Errno(-e.Status)
	}
	return 0
}

// Failure is the error that an event tells of, nil for one that tells of none. Whether a peer refuses or ends a connection
// is for those to see who make connections.
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
