package netstack

import (
	"errors"
	"net"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// mapError converts gVisor's errors to those that the net package would return, so that errors.Is works. Errors that
// cannot happen here keep their text.
func mapError(err tcpip.Error) error {
	switch err.(type) {
	case nil:
		return nil
	case *tcpip.ErrWouldBlock:
		return ErrWouldBlock
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrHostUnreachable, *tcpip.ErrHostDown:
		return syscall.EHOSTUNREACH
	case *tcpip.ErrNetworkUnreachable, *tcpip.ErrNoNet:
		return syscall.ENETUNREACH
	case *tcpip.ErrPortInUse, *tcpip.ErrDuplicateAddress:
		return syscall.EADDRINUSE
	case *tcpip.ErrBadLocalAddress:
		return syscall.EADDRNOTAVAIL
	case *tcpip.ErrClosedForSend:
		return syscall.EPIPE
	case *tcpip.ErrAborted, *tcpip.ErrConnectionAborted, *tcpip.ErrInvalidEndpointState, *tcpip.ErrNotConnected:
		return net.ErrClosed
	default:
		return errors.New(err.String())
	}
}
