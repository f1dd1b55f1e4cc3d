package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
)

const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// newMemory makes sparse memory whose size is sealed and that its owner alone may open.
func newMemory(name string, size int64) (int, error) {
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

// seal forbids other sizes, and what else is asked for. Whether more may be forbidden is F_SEAL_SEAL.
func seal(fd, more int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals|more); err != nil {
		return fmt.Errorf("seal memory: %w", err)
	}
	return nil
}

// reopen opens the file of a descriptor again.
func reopen(fd, flags int) (int, error) {
	n, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open memory again: %w", err)
	}
	return n, nil
}

// shared is memory of one writer: a descriptor to write with and one to read with, which are handed out, and one that the
// broker keeps. Each is an open file of its own, or the kernel could not tell whether others have any.
type shared struct{ write, read, kept int }

// none is no memory.
var none = shared{-1, -1, -1}

// newShared makes memory that begins with head, with seals besides those of its size.
func newShared(name string, size int64, head []byte, seals int) (shared, error) {
	fd, err := newMemory(name, size)
	if err != nil {
		return none, err
	}
	defer func() { _ = unix.Close(fd) }() // the kernel does not count it as one that writes
	s := none
	if _, err = unix.Pwrite(fd, head, 0); err == nil {
		err = seal(fd, seals)
	}
	if err == nil {
		s.write, err = reopen(fd, unix.O_RDWR)
	}
	if err == nil {
		s.read, err = reopen(fd, unix.O_RDONLY)
	}
	if err == nil {
		s.kept, err = reopen(fd, unix.O_RDONLY)
	}
	if err != nil {
		s.close()
		return none, err
	}
	return s, nil
}

// handed is when others have what they get.
func (s *shared) handed() { closeAll(&s.write, &s.read) }

func (s *shared) close() { closeAll(&s.write, &s.read, &s.kept) }

func closeAll(fds ...*int) {
	for _, fd := range fds {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// writeLease is a lease that no other open file of any kind allows.
const writeLease = unix.F_WRLCK

// elsewhere tells whether any but the broker has the file of a descriptor that is kept, open, mapped or on its way. While it
// is open for writing it is not known whether it is for reading, too.
func elsewhere(kept int) (write, read bool) {
	switch {
	case lease(kept, writeLease):
		return false, false
	case lease(kept, unix.F_RDLCK):
		return false, true
	default:
		return true, false
	}
}

// lease tries to take a lease, which the kernel refuses while others have the file open in a way that breaks it. It is
// given back at once. Where there are no leases (fs.leases-enable) others are taken to have gone.
func lease(fd, kind int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, kind)
	if err == nil {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return !errors.Is(err, unix.EAGAIN)
}

// head begins every shared memory.
func head(size int) []byte {
	b := make([]byte, 0, size)
	b = binary.NativeEndian.AppendUint32(b, inprocess.Magic)
	return binary.NativeEndian.AppendUint32(b, inprocess.Version)
}

// endHead begins the memory of an end.
func endHead(id uint64, side, order uint32) []byte {
	b := binary.NativeEndian.AppendUint64(head(inprocess.EndHead), id)
	b = binary.NativeEndian.AppendUint32(b, side)
	return binary.NativeEndian.AppendUint32(b, order)
}

// memories are those of both ends of a connection.
type memories [2]shared

func newMemories(id uint64, order uint32) (*memories, error) {
	var m memories
	var err error
	for i := range m {
		if m[i], err = newShared("smcgw-end", inprocess.EndSize(order), endHead(id, uint32(i), order), unix.F_SEAL_SEAL); err != nil {
			if i > 0 {
				m[0].close()
			}
			return nil, err
		}
	}
	return &m, nil
}

func (m *memories) handed() {
	for i := range m {
		m[i].handed()
	}
}

func (m *memories) close() {
	for i := range m {
		m[i].close()
	}
}

// holders tells which ends' processes have memory of the connection: an end has its own to write, and its peer's to read.
func (m *memories) holders() (has [2]bool) {
	for side := range m {
		write, read := elsewhere(m[side].kept)
		has[side] = has[side] || write
		has[1-side] = has[1-side] || read
	}
	return has
}

// slab is the memory in which a process says how its ends are. It is read and never mapped: a slab that is cut
// short is an entry that says nothing.
type slab struct {
	f       *os.File
	key     slabKey
	entries uint32
}

// slabKey tells slabs apart: a forked child has its parent's.
type slabKey struct{ dev, ino uint64 }

// SlabError is a file that came with a Hello and cannot be a slab.
type SlabError struct{ Err error }

// Error says what is wrong with it.
func (e *SlabError) Error() string { return "slab: " + e.Err.Error() }

// Unwrap is the error of the kernel.
func (e *SlabError) Unwrap() error { return e.Err }

// newSlab takes over a descriptor of memory with so many entries. Only memory has seals to ask for, and reading memory waits for nobody: a file
// of a file system in user space, a pipe or a device could.
func newSlab(fd int, entries uint32) (slab, error) {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil {
		var flags int
		if flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil && flags&unix.O_ACCMODE == unix.O_WRONLY {
			err = unix.EACCES
		}
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		_ = unix.Close(fd)
		return slab{}, &SlabError{err}
	}
	return slab{os.NewFile(uintptr(fd), "slab"), slabKey{st.Dev, st.Ino}, entries}, nil
}

// report reads what an entry says; nothing if it cannot be. Reads of a closed slab say nothing, too.
func (s slab) report(tag uint32) (r inprocess.Report, ok bool) {
	if s.f == nil {
		return r, false
	}
	var b [inprocess.ReportSize]byte
	n, _ := s.f.ReadAt(b[:], int64(inprocess.Index(tag))*inprocess.EntrySize)
	r, err := inprocess.ParseReport(b[:n])
	return r, err == nil
}

// scanned is how many entries are read at a time.
const scanned = 64

// each calls fn with what the entries say that have ever been written, and returns how many it has read: limit and scanned at most.
func (s slab) each(limit int, fn func(index uint32, r inprocess.Report)) (read int) {
	if s.f == nil {
		return 0
	}
	b := make([]byte, scanned*inprocess.EntrySize)
	for at, end := int64(0), int64(s.entries)*inprocess.EntrySize; at < end && read < limit; read += scanned {
		if at = s.data(at); at < 0 {
			return read
		}
		n, _ := s.f.ReadAt(b[:min(int64(len(b)), max(end-at, 0))], at)
		for i := 0; i+inprocess.ReportSize <= n; i += inprocess.EntrySize {
			if r, err := inprocess.ParseReport(b[i:n]); err == nil {
				fn(uint32((at+int64(i))/inprocess.EntrySize), r)
			}
		}
		if n < len(b) {
			return read + scanned
		}
		at += int64(n)
	}
	return read
}

// data is the first entry at or after an offset of whose page there is something; -1 for none.
func (s slab) data(at int64) (found int64) {
	raw, err := s.f.SyscallConn()
	if err != nil {
		return -1
	}
	found = -1
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.Seek(int(fd), at, unix.SEEK_DATA); err == nil {
			found = n - n%inprocess.EntrySize
		}
	})
	return found
}

func (s slab) close() {
	if s.f != nil {
		_ = s.f.Close()
	}
}

// never counts the ends that did not ask, by their libraries' reasons.
func (s slab) never() (n ByWhy) {
	s.each(math.MaxInt, func(_ uint32, r inprocess.Report) {
		if r.State == inprocess.StateNever && r.ID == 0 {
			n[r.Why]++
		}
	})
	return n
}
