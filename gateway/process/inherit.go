package process

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

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
