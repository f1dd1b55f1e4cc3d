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

// descriptorSpare is how many descriptors above the floor of legs are left to
// everything else.
const descriptorSpare = 64

// LegRoom returns how many legs may have a descriptor now.
func LegRoom() int { return DescriptorLimit() - LegFloor - descriptorSpare }

// errDescriptors means that the process may not have the descriptors that a gateway needs.
var errDescriptors = errors.New("limit of open files too small")

// RequireDescriptors refuses a limit under which nothing could be carried; without it the
// kernel's error is about whatever comes first.
func RequireDescriptors() error {
	if LegRoom() <= 0 {
		return fmt.Errorf("%w: %d descriptors; %d and one for each connection are needed (ulimit -n, LimitNOFILE of systemd)", errDescriptors, DescriptorLimit(), LegFloor+descriptorSpare)
	}
	return nil
}
