package e2e

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// savedSYN returns the headers of the SYN that opened a socket's connection.
func savedSYN(fd int) ([]byte, error) {
	b := make([]byte, 256)
	size := uint32(len(b))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_SAVED_SYN,
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return nil, errno
	}
	return b[:size], nil
}
