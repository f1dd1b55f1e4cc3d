package rdmacm

import (
	"fmt"
	"strconv"
	"syscall"
)

// eventKind says what has happened (enum rdma_cm_event_type).
type eventKind uint32

// The events.
const (
	addrResolved    eventKind = 0
	addrError       eventKind = 1
	routeResolved   eventKind = 2
	routeError      eventKind = 3
	connectRequest  eventKind = 4
	connectResponse eventKind = 5
	connectError    eventKind = 6
	unreachable     eventKind = 7
	rejected        eventKind = 8
	established     eventKind = 9
	disconnected    eventKind = 10
	deviceRemoval   eventKind = 11
	multicastJoin   eventKind = 12
	multicastError  eventKind = 13
	addrChange      eventKind = 14
	timewaitExit    eventKind = 15
)

var eventNames = [...]string{
	addrResolved: "ADDR_RESOLVED", addrError: "ADDR_ERROR", routeResolved: "ROUTE_RESOLVED", routeError: "ROUTE_ERROR",
	connectRequest: "CONNECT_REQUEST", connectResponse: "CONNECT_RESPONSE", connectError: "CONNECT_ERROR",
	unreachable: "UNREACHABLE", rejected: "REJECTED", established: "ESTABLISHED", disconnected: "DISCONNECTED",
	deviceRemoval: "DEVICE_REMOVAL", multicastJoin: "MULTICAST_JOIN", multicastError: "MULTICAST_ERROR",
	addrChange: "ADDR_CHANGE", timewaitExit: "TIMEWAIT_EXIT",
}

// String returns the name that the kernel has for the event.
func (k eventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "event " + strconv.FormatUint(uint64(k), 10)
}

const (
	eventHeadSize = 8 + 4 + 4 + 4
	eventUDSize   = 304 // the larger part of the union, struct rdma_ucm_ud_param
	eventSize     = 336 // struct rdma_ucm_event_resp
	// eventMinSize is what kernels before 5.8 write.
	eventMinSize = eventHeadSize + eventUDSize
)

// event is what the manager has to say (struct rdma_ucm_event_resp).
type event struct {
	uid    uint64 // of the identifier, or of the listener that a new one belongs to
	id     uint32 // of a request: the new identifier
	kind   eventKind
	status int32 // 0, a negative errno or, of a rejection, its reason
	param  connParam
}

// parse reads an answer to getEvent.
func (e *event) parse(b []byte) error {
	if len(b) < eventMinSize {
		return fmt.Errorf("event of %d bytes: %w", len(b), ErrMalformed)
	}
	*e = event{uid: native.Uint64(b), id: native.Uint32(b[8:]), kind: eventKind(native.Uint32(b[12:])), status: int32(native.Uint32(b[16:]))}
	if err := e.param.parse(b[eventHeadSize:]); err != nil {
		return err
	}
	if int(e.kind) >= len(eventNames) {
		return fmt.Errorf("%v: %w", e.kind, ErrMalformed)
	}
	return nil
}

// errno is the cause of an event that tells of an error.
func (e *event) errno() syscall.Errno {
	if e.status < 0 && e.status > -4096 {
		return syscall.Errno(-e.status)
	}
	return 0
}
