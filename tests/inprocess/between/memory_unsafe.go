package between

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory is one that a program maps, too.
type memory struct {
	b    []byte
	file int // writable
}

func newMemory(size int64) (*memory, error) {
	fd, err := unix.MemfdCreate("between", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err = unix.Ftruncate(fd, size); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &memory{b, fd}, nil
}

func (m *memory) close() {
	_ = unix.Munmap(m.b)
	_ = unix.Close(m.file)
}

// reading is a descriptor of the same memory that cannot write.
func (m *memory) reading() (int, error) {
	return unix.Open(fmt.Sprintf("/proc/self/fd/%d", m.file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

func (m *memory) w32(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&m.b[at])) }
func (m *memory) w64(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&m.b[at])) }

// wake has those that wait for the word look again.
func (m *memory) wake(at int) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&m.b[at])), 1, 1<<30, 0, 0, 0)
}
