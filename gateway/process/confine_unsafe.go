package process

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// setThreadGroups is setgroups(2) for the calling thread alone; the wrappers of the
// libraries change all threads.
func setThreadGroups(groups []int) error {
	list := make([]uint32, len(groups))
	for i, g := range groups {
		list[i] = uint32(g)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(list)), uintptr(unsafe.Pointer(unsafe.SliceData(list))), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
