package process

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// LegFloor is the lowest descriptor of an app leg. What is below are first the
// TUNs and links, which a dying process must close after its sockets, and the
// kernel closes the highest first (docs/ARCHITECTURE.md "Traps"); and then what
// operators, peers and devices need when the legs have taken all the rest.
const LegFloor = 256

// OwnDescriptors is how many descriptors a gateway needs besides one for each connection:
// those below LegFloor, and what is left to everything else above it. With no more it does
// not start.
const OwnDescriptors = LegFloor + 64

// LegBatch is how many sockets of a family are made at once, ahead of need, for legs.
const LegBatch = 32

// AboveFloor moves a descriptor to where those of legs are. The error says that
// there is no room; fd stays open then.
func AboveFloor(fd int) (int, error) {
	if fd >= LegFloor {
		return fd, nil
	}
	moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, LegFloor)
	if errors.Is(err, unix.EINVAL) { // the limit is below the floor
		err = unix.EMFILE
	}
	if err != nil {
		return fd, fmt.Errorf("descriptor of an app leg: %w", err)
	}
	_ = unix.Close(fd)
	return moved, nil
}

// DescriptorLimit returns how many descriptors this process may have now. Go has
// raised the soft limit to the hard one at start; an operator may lower both.
func DescriptorLimit() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return math.MaxInt32
	}
	return int(min(r.Cur, math.MaxInt32))
}
