package soft

import (
	"sync/atomic"
	"unsafe"
)

// addressOf returns the virtual address of the first byte, which peers use. Heap memory does not move.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// word returns 8 aligned bytes as an atomic, in host byte order.
func word(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
