package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a memfd mapped into our address space. Its methods check bounds; the pointers that they return are valid
// until close.
type mapping struct {
	b []byte
}

func newMapping(fd int, size uint64) (*mapping, error) {
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared memory: %w", err)
	}
	return &mapping{b: b}, nil
}

func (m *mapping) size() uint64 { return uint64(len(m.b)) }

func (m *mapping) close() {
	if m.b != nil {
		_ = unix.Munmap(m.b)
		m.b = nil
	}
}

// span returns the n bytes at off, which the caller has checked with fits.
func (m *mapping) span(off, n uint64) []byte { return m.b[off : off+n : off+n] }

// word returns the 64-bit word at off, a multiple of 8.
func (m *mapping) word(off uint64) *atomic.Uint64 { return &m.words(off, 1)[0] }

// words returns n 64-bit words at off, a multiple of 8. mmap aligns the base.
func (m *mapping) words(off, n uint64) []atomic.Uint64 {
	b := m.b[off&^7:][: n*8 : n*8]
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// block returns the queue pair block at off, a multiple of 8.
func (m *mapping) block(off uint64) *blockWords {
	return (*blockWords)(unsafe.Pointer(unsafe.SliceData(m.b[off&^7:][:blkRing:blkRing])))
}

// plainWords returns the same memory for ordinary stores, which the later store of an index publishes; an atomic store
// costs a locked instruction on amd64.
func (m *mapping) plainWords(off, n uint64) []uint64 {
	b := m.b[off&^7:][: n*8 : n*8]
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// addressOf returns the number by which registered memory is addressed. It is never converted back to a pointer.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// ringBell adds 1 to an eventfd. It uses Syscall, although RawSyscall is 50 ns faster: a hostile peer can make the
// write block, and a blocked thread that kept its P would stop the garbage collector, and with it the warden.
func ringBell(fd int) {
	one := uint64(1)
	_, _, _ = unix.Syscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}
