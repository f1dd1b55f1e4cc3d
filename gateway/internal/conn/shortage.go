package conn

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/negotiate"
)

// shortage returns the reason for a kernel error that reports a lack of resources, or
// ReasonNone.
func shortage(err error) negotiate.Reason {
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return negotiate.ReasonFlowLimit
	case errors.Is(err, legs.ErrKeeper), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOSPC):
		return negotiate.ReasonNoMemory
	default:
		return negotiate.ReasonNone
	}
}
