package rdmacm

import (
	"errors"
	"fmt"
	"syscall"
)

var (
	// ErrMalformed is an answer that no kernel gives.
	ErrMalformed = errors.New("malformed answer of the connection manager")
	// ErrAbsent is a host without the device file: rdma_ucm is not loaded, or the container lacks it.
	ErrAbsent = errors.New("connection manager absent")
	// ErrCredentials is a command by a thread whose credentials differ from those that opened the device file.
	ErrCredentials = errors.New("thread with changed credentials")
	// ErrDeviceRemoved means that the adapter was removed.
	ErrDeviceRemoved = fmt.Errorf("device removed: %w", syscall.ENODEV)
)

// CommandError is a command refused by the kernel. It unwraps to the errno, and to ErrCredentials if that is the cause.
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

// EventError is an event that reports an error. It unwraps to the errno, if there is one.
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
