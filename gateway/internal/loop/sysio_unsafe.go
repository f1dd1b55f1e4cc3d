package loop

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The functions in this file enter the kernel without telling the Go scheduler, so the calling thread keeps its P. Use
// them only on descriptors that never block, and for waits so short that the runtime need not take the P away
// (docs/ARCHITECTURE.md "Shards").

// RawRead reads what is available into b, which must not be empty. It returns the count and 0, or 0 and the error
// number. A count of 0 with errno 0 is the end of the stream.
func RawRead(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// RawWrite writes b, which must not be empty, to a device that takes a packet entirely or not at all. It returns 0 or
// the error number.
func RawWrite(fd int, b []byte) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	return errno
}

// RawSend writes as much of b, which must not be empty, as the socket takes
// now. It never raises SIGPIPE.
func RawSend(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// rawEpollWait waits for at most timeout milliseconds and keeps the P.
func rawEpollWait(epfd int, events []unix.EpollEvent, timeout int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd), uintptr(unsafe.Pointer(&events[0])),
		uintptr(len(events)), uintptr(timeout), 0, 8)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// rawYield yields the processor to other threads.
func rawYield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// rawNap sleeps for less than a second, whatever comes. A signal ends it.
func rawNap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// rawIncomingCPU returns the processor on which the last packet of a TCP socket arrived. Between programs on one host
// that is the sender's.
func rawIncomingCPU(fd int) (cpu int, ok bool) {
	value, size := int32(0), uint32(4)
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_INCOMING_CPU,
		uintptr(unsafe.Pointer(&value)), uintptr(unsafe.Pointer(&size)), 0)
	return int(value), errno == 0 && value >= 0
}
