package rogue

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore tells which pages of b are resident.
func mincore(b, pages []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE,
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(pages))))
	if errno != 0 {
		return errno
	}
	return nil
}
