package process

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// LegFloor is the lowest descriptor of an app leg. Below it are, first, the TUNs and links: a
// dying process must close them after its sockets, and the kernel closes the highest
// descriptors first (docs/ARCHITECTURE.md "Traps"). Second, it reserves descriptors for
// operators, peers and devices when the legs have taken all the rest.
const LegFloor = 256

// OwnDescriptors is the number of descriptors that a gateway needs besides one per
// connection: those below LegFloor, and a reserve above it for everything else. If the limit
// is no higher than this, it does not start.
const OwnDescriptors = LegFloor + 64

// LegBatch is the number of sockets of a family made at once, ahead of need, for legs.
const LegBatch = 32

// AboveFloor moves a descriptor to the range of app legs. If there is no room, it returns an
// error and fd stays open.
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

// DescriptorLimit returns how many descriptors this process may have now. Go has raised the
// soft limit to the hard limit at start; an operator may lower both.
func DescriptorLimit() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return math.MaxInt32
	}
	return int(min(r.Cur, math.MaxInt32))
}

// RoleEnv holds the role in which one process of a gateway started another; it is unset in
// the first.
const RoleEnv = "SMCGW_SUPERVISION"

var errNotInherited = errors.New("descriptor not inherited; the environment was set by hand")

// InheritedFile takes over a descriptor that the parent left under a fixed number.
func InheritedFile(fd int, name string) (*os.File, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("%s: %w", name, errNotInherited)
	}
	return os.NewFile(uintptr(fd), name), nil
}
