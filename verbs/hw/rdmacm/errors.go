package rdmacm

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/smcgw/smcgw/verbs/cm"
)

var (
	// ErrMalformed is an answer that the kernel does not give.
	ErrMalformed = errors.New("malformed answer of the connection manager")
	// ErrAbsent is a host without the device file: rdma_ucm is not loaded, or a container does not have it.
	ErrAbsent = errors.New("connection manager absent")
	// ErrCredentials is a command by a thread with other credentials than those that opened the device file.
	ErrCredentials = errors.New("thread with changed credentials")
	// ErrOtherDevice is an address or request that belongs to another adapter than the manager's.
	ErrOtherDevice = fmt.Errorf("address of another device: %w", syscall.EADDRNOTAVAIL)
	// ErrDeviceRemoved is the end of the adapter.
	ErrDeviceRemoved = fmt.Errorf("device removed: %w", syscall.ENODEV)
)

// CommandError is a command that the kernel refuses. It unwraps to the errno, and to ErrCredentials where that is the
// cause.
type CommandError struct {
	Command string
	Errno   syscall.Errno
}

// Error implements error.
func (e *CommandError) Error() string { return e.Command + ": " + e.Errno.Error() }

// Unwrap returns the causes.
func (e *CommandError) Unwrap() []error {
	if e.Errno == syscall.EACCES {
		return []error{e.Errno, ErrCredentials}
	}
	return []error{e.Errno}
}

// EventError is an event that tells of an error. It unwraps to the errno, if there is one.
type EventError struct {
	Event string
	Errno syscall.Errno
}

// Error implements error.
func (e *EventError) Error() string {
	if e.Errno == 0 {
		return e.Event
	}
	return e.Event + ": " + e.Errno.Error()
}

// Unwrap returns the errno.
func (e *EventError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// failure is the error that an event tells of, nil for one that tells of none.
func (e *event) failure() error {
	switch e.kind {
	case rejected:
		return &cm.RejectError{Reason: cm.RejectReason(e.status), PrivateData: e.param.private}
	case unreachable:
		if e.errno() == syscall.ETIMEDOUT {
			return cm.ErrTimeout
		}
		return &EventError{Event: e.kind.String(), Errno: e.errno()}
	case addrError, routeError, connectError:
		return &EventError{Event: e.kind.String(), Errno: e.errno()}
	case deviceRemoval:
		return ErrDeviceRemoved
	case disconnected:
		return cm.ErrDisconnected
	default:
		return nil
	}
}
