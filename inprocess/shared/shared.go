package shared

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// New creates sparse memory that only its owner may open.
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

// Seal fixes the size and adds the seals of more. Without F_SEAL_SEAL among them, more seals may be added later.
func Seal(fd, more int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals|more); err != nil {
		return fmt.Errorf("seal memory: %w", err)
	}
	return nil
}

// Reopen opens the file of a descriptor again, as an open file of its own.
func Reopen(fd, flags int) (int, error) {
	n, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open memory again: %w", err)
	}
	return n, nil
}

// Memory is memory with one writer: a descriptor for writing and one for reading, to be handed out, and one that the
// daemon keeps. Each is an open file of its own, or the kernel could not tell whether other processes have any.
type Memory struct{ Write, Read, Kept int }

// None is a Memory without descriptors.
var None = Memory{-1, -1, -1}

// NewMemory creates memory that begins with head. seals are added to those of the size.
func NewMemory(name string, size int64, head []byte, seals int) (Memory, error) {
	fd, err := New(name, size)
	if err != nil {
		return None, err
	}
	defer func() { _ = unix.Close(fd) }() // the kernel does not count it as a writer
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

// Handed closes the descriptors that other processes now have.
func (m *Memory) Handed() { Close(&m.Write, &m.Read) }

// Close closes all descriptors that m has.
func (m *Memory) Close() { Close(&m.Write, &m.Read, &m.Kept) }

// Close closes the descriptors that are not negative and sets them to -1.
func Close(fds ...*int) {
	for _, fd := range fds {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// Head returns the first words of any shared memory, with capacity for size bytes.
func Head(size int) []byte {
	b := make([]byte, 0, size)
	b = binary.NativeEndian.AppendUint32(b, inprocess.Magic)
	return binary.NativeEndian.AppendUint32(b, inprocess.Version)
}

// EndHead returns the first words of an end's memory.
func EndHead(id uint64, side, order uint32) []byte {
	b := binary.NativeEndian.AppendUint64(Head(inprocess.EndHead), id)
	b = binary.NativeEndian.AppendUint32(b, side)
	return binary.NativeEndian.AppendUint32(b, order)
}

// Portion is what the process of an end between hosts receives: its own memory, writable; the mirror, readable; the
// bell. The files that are kept tell whether a process still has them.
type Portion struct {
	Own, Mirror Memory
	Bell        int
}

// NoPortion is a Portion without descriptors.
var NoPortion = Portion{None, None, -1}

// Take returns the portion and leaves NoPortion behind.
func (p *Portion) Take() Portion {
	given := *p
	*p = NoPortion
	return given
}

// Close closes all descriptors that p has.
func (p *Portion) Close() {
	p.Own.Close()
	p.Mirror.Close()
	Close(&p.Bell)
}

// mostLingering bounds the sockets that are closed slowly at the same time.
const mostLingering = 64

var slow = make(chan struct{}, mostLingering)

// CloseSocket closes a duplicate of a program's socket, if the descriptor is not negative, and sets it to -1. It does not
// wait, whatever the program has asked for: if this is the last descriptor and bytes are left to send, close(2) takes as
// long as SO_LINGER says, so another goroutine does it. If too many do so already, the socket is closed as that of a
// process that exits: the bytes are sent all the same.
func CloseSocket(fd *int) {
	n := *fd
	if *fd = -1; n < 0 {
		return
	}
	if l, err := unix.GetsockoptLinger(n, unix.SOL_SOCKET, unix.SO_LINGER); err == nil && l.Onoff != 0 && l.Linger > 0 {
		select {
		case slow <- struct{}{}:
			go func() {
				_ = unix.Close(n)
				<-slow
			}()
			return
		default:
			_ = unix.SetsockoptLinger(n, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		}
	}
	_ = unix.Close(n)
}
