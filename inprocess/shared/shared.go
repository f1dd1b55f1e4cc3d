package shared

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// New makes sparse memory that its owner alone may open.
func New(name string, size int64) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("create memory: %w", err)
	}
	err = unix.Ftruncate(fd, size)
	if err == nil {
		err = unix.Fchmod(fd, 0o600)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("size memory: %w", err)
	}
	return fd, nil
}

// Seal forbids other sizes, and what else is asked for. Whether more may be forbidden is F_SEAL_SEAL.
func Seal(fd, more int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals|more); err != nil {
		return fmt.Errorf("seal memory: %w", err)
	}
	return nil
}

// Reopen opens the file of a descriptor again.
func Reopen(fd, flags int) (int, error) {
	n, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open memory again: %w", err)
	}
	return n, nil
}

// Memory is memory of one writer: a descriptor to write with and one to read with, which are handed out, and one that the
// daemon keeps. Each is an open file of its own, or the kernel could not tell whether others have any.
type Memory struct{ Write, Read, Kept int }

// None is no memory.
var None = Memory{-1, -1, -1}

// NewMemory makes memory that begins with head, with seals besides those of its size.
func NewMemory(name string, size int64, head []byte, seals int) (Memory, error) {
	fd, err := New(name, size)
	if err != nil {
		return None, err
	}
	defer func() { _ = unix.Close(fd) }() // the kernel does not count it as one that writes
	m := None
	if _, err = unix.Pwrite(fd, head, 0); err == nil {
		err = Seal(fd, seals)
	}
	if err == nil {
		m.Write, err = Reopen(fd, unix.O_RDWR)
	}
	if err == nil {
		m.Read, err = Reopen(fd, unix.O_RDONLY)
	}
	if err == nil {
		m.Kept, err = Reopen(fd, unix.O_RDONLY)
	}
	if err != nil {
		m.Close()
		return None, err
	}
	return m, nil
}

// Handed is when others have what they get.
func (m *Memory) Handed() { Close(&m.Write, &m.Read) }

// Close closes what there is.
func (m *Memory) Close() { Close(&m.Write, &m.Read, &m.Kept) }

// Close closes descriptors, once each.
func Close(fds ...*int) {
	for _, fd := range fds {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// Head begins every shared memory.
func Head(size int) []byte {
	b := make([]byte, 0, size)
	b = binary.NativeEndian.AppendUint32(b, inprocess.Magic)
	return binary.NativeEndian.AppendUint32(b, inprocess.Version)
}

// EndHead begins the memory of an end.
func EndHead(id uint64, side, order uint32) []byte {
	b := binary.NativeEndian.AppendUint64(Head(inprocess.EndHead), id)
	b = binary.NativeEndian.AppendUint32(b, side)
	return binary.NativeEndian.AppendUint32(b, order)
}

// Portion is what the process of an end between hosts is handed: its own memory to write, the mirror to read, the bell. The
// files that are kept tell whether it has them.
type Portion struct {
	Own, Mirror Memory
	Bell        int
}

// NoPortion is none.
var NoPortion = Portion{None, None, -1}

// Take hands the portion over: what is left is none.
func (p *Portion) Take() Portion {
	given := *p
	*p = NoPortion
	return given
}

// Close closes what there is.
func (p *Portion) Close() {
	p.Own.Close()
	p.Mirror.Close()
	Close(&p.Bell)
}
