package between

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory is shared with a program that maps it, too.
type memory struct {
	b    []byte
	file int // writable until handed is called
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
	// The kernel does not count the descriptor of memfd_create(2) as a writer.
	m := &memory{file: fd}
	m.file, err = m.open(unix.O_RDWR)
	_ = unix.Close(fd)
	if err != nil {
		return nil, err
	}
	if m.b, err = unix.Mmap(m.file, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		_ = unix.Close(m.file)
		return nil, err
	}
	return m, nil
}

// open returns another descriptor of the same memory.
func (m *memory) open(mode int) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/self/fd/%d", m.file), mode|unix.O_CLOEXEC, 0)
}

func (m *memory) close() {
	_ = unix.Munmap(m.b)
	_ = unix.Close(m.file)
}

// reading returns a read-only descriptor of the same memory.
func (m *memory) reading() (int, error) { return m.open(unix.O_RDONLY) }

// handed gives up write access. It is called once the process that alone writes from then on has got the memory.
func (m *memory) handed() error {
	r, err := m.reading()
	if err != nil {
		return err
	}
	b, err := unix.Mmap(r, 0, len(m.b), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(r)
		return err
	}
	m.close()
	m.b, m.file = b, r
	return nil
}

// written tells whether a process can write the memory, or is about to get it.
func (m *memory) written() bool {
	_, err := unix.FcntlInt(uintptr(m.file), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(uintptr(m.file), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return err == unix.EAGAIN
}

func (m *memory) w32(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&m.b[at])) }
func (m *memory) w64(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&m.b[at])) }

// wake wakes the threads that wait on the word at an offset.
func (m *memory) wake(at int) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&m.b[at])), 1, 1<<30, 0, 0, 0)
}
