package soft

import (
	"sync/atomic"
	"unsafe"
)

// addressOf is the virtual address of the first byte, which peers name it by.
// Memory of the heap does not move.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// word is 8 aligned bytes as an atomic, in the byte order of the host.
func word(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
