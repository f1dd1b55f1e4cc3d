package gateway

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf/legs"
	"github.com/smcgw/smcgw/negotiate"
)

const (
	// legFloor is the lowest descriptor of an app leg. What is below are first the
	// TUNs and links, which a dying process must close after its sockets, and the
	// kernel closes the highest first (docs/ARCHITECTURE.md "Traps"); and then what
	// operators, peers and devices need when the legs have taken all the rest.
	legFloor = 256
	// descriptorSpare is how many above the floor are left to everything else.
	descriptorSpare = 64
)

// aboveFloor moves a descriptor to where those of legs are. The error says that
// there is no room; fd stays open then.
func aboveFloor(fd int) (int, error) {
	if fd >= legFloor {
		return fd, nil
	}
	moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, legFloor)
	if errors.Is(err, unix.EINVAL) { // the limit is below the floor
		err = unix.EMFILE
	}
	if err != nil {
		return fd, fmt.Errorf("descriptor of an app leg: %w", err)
	}
	_ = unix.Close(fd)
	return moved, nil
}

// descriptorLimit returns how many descriptors this process may have now. Go has
// raised the soft limit to the hard one at start; an operator may lower both.
func descriptorLimit() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return math.MaxInt32
	}
	return int(min(r.Cur, math.MaxInt32))
}

// flowLimit is how many flows the gateway may have now: each needs a descriptor
// for its app leg, and one that turns out to be missing when the application has
// been connected is an error of that connection.
func (g *gateway) flowLimit() int {
	return max(0, min(g.live.Load().Limits.MaxFlows, descriptorLimit()-legFloor-descriptorSpare))
}

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
