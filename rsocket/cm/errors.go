package cm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

var (
	// ErrTimeout means that the peer did not answer, after all repetitions.
	ErrTimeout = fmt.Errorf("no answer from peer: %w", os.ErrDeadlineExceeded)
	// ErrDisconnected is the end of a connection by the peer.
	ErrDisconnected = fmt.Errorf("disconnected by peer: %w", syscall.ECONNRESET)
	// ErrClosed is the use of a manager, listener or connection after its end.
	ErrClosed = fmt.Errorf("communication manager: %w", net.ErrClosed)
	// ErrAddrInUse is a service that already has a listener.
	ErrAddrInUse = fmt.Errorf("listen: %w", syscall.EADDRINUSE)
	// ErrAddrNotAvail is a local address that the device does not have.
	ErrAddrNotAvail = fmt.Errorf("local address: %w", syscall.EADDRNOTAVAIL)
	// ErrNoResources means that a bound of Config is reached.
	ErrNoResources = fmt.Errorf("communication manager: %w", syscall.ENOBUFS)
	// ErrAnswered is a second answer to a request, or an answer to a request that is over.
	ErrAnswered = errors.New("request is answered or withdrawn")
	// ErrPrivateData is private data that is too long for the message.
	ErrPrivateData = fmt.Errorf("private data too long: %w", syscall.EINVAL)
)

// RejectError is a REJ of the peer. It unwraps to ECONNREFUSED, and to
// ETIMEDOUT if the peer gave up waiting for us.
type RejectError struct {
	Reason      RejectReason
	ARI         []byte // additional information: what would have been acceptable
	PrivateData []byte // the whole field, padded with zeros
}

// Error implements error.
func (e *RejectError) Error() string { return "rejected by peer: " + e.Reason.String() }

// Unwrap returns the matching errno.
func (e *RejectError) Unwrap() error {
	if e.Reason == RejectTimeout {
		return syscall.ETIMEDOUT
	}
	return syscall.ECONNREFUSED
}
