package netdev

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Enter moves the calling thread to a namespace unless it is already there: moving takes CAP_SYS_ADMIN, which a gateway
// in its own namespace does not have.
func Enter(ns *os.File) error {
	var here, there unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &here); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if err := unix.Fstat(int(ns.Fd()), &there); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if here.Dev == there.Dev && here.Ino == there.Ino {
		return nil
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}
