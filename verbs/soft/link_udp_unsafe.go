package soft

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of this file enter the kernel without telling the Go scheduler: the calling thread keeps its P. They never
// block. The headers must point only to heap memory, which the caller's structures ensure.

// sendmmsg returns how many of the messages were sent, at least one, or 0 and
// the error of the first.
func sendmmsg(fd int, msgs []unix.Mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	runtime.KeepAlive(msgs)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// recvmmsg returns how many messages arrived, at least one, or 0 and an error.
func recvmmsg(fd int, msgs []unix.Mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[0])), uintptr(len(msgs)),
		unix.MSG_DONTWAIT, 0, 0)
	runtime.KeepAlive(msgs)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// pollNow returns how many of the descriptors are ready now; zero is a zero timeout, which the call may write to.
func pollNow(fds []unix.PollFd, zero *unix.Timespec) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)),
		uintptr(unsafe.Pointer(zero)), 0, 0, 0)
	runtime.KeepAlive(fds)
	if errno != 0 {
		return len(fds) // find out by reading
	}
	return int(n)
}
