package conn

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/negotiate"
)

// shortage names what an error of the kernel says there is too little of, or no
// reason.
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
