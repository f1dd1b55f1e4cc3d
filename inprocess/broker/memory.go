package broker

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
)

// writeLease is a lease that the kernel grants only if the file is open nowhere else, in any mode.
const writeLease = unix.F_WRLCK

// elsewhere reports whether anything but the broker has the file of a kept descriptor open, mapped, or in flight in a
// message. While it is open for writing, the kernel does not tell whether it is open for reading, too; read is true
// then.
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

// lease reports whether the kernel grants a lease, which it refuses while others have the file open in a conflicting
// way. The lease is released immediately. Where leases are disabled (fs.leases-enable) it returns true, as if the
// others had gone.
func lease(fd, kind int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, kind)
	if err == nil {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return !errors.Is(err, unix.EAGAIN)
}

// memories are the memories of both ends of a connection.
type memories [2]shared.Memory

func newMemories(id uint64, order uint32) (*memories, error) {
	var m memories
	var err error
	for i := range m {
		if m[i], err = shared.NewMemory("smcgw-end", inprocess.EndSize(order), shared.EndHead(id, uint32(i), order), unix.F_SEAL_SEAL); err != nil {
			if i > 0 {
				m[0].Close()
			}
			return nil, err
		}
	}
	return &m, nil
}

func (m *memories) handed() {
	for i := range m {
		m[i].Handed()
	}
}

func (m *memories) close() {
	for i := range m {
		m[i].Close()
	}
}

// holders reports which ends' processes have memory of the connection: an end has its own for writing, and its peer's
// for reading.
func (m *memories) holders() (has [2]bool) {
	for side := range m {
		write, read := elsewhere(m[side].Kept)
		has[side] = has[side] || write
		has[1-side] = has[1-side] || read
	}
	return has
}

// slab is the memory in which a process reports on its ends. The broker reads it with pread(2) and never maps it, so a
// truncated slab merely has entries that say nothing.
type slab struct {
	f       *os.File
	key     slabKey
	entries uint32
}

// slabKey identifies a slab: a forked child shares its parent's.
type slabKey struct{ dev, ino uint64 }

// SlabError reports a file that came with a Hello and cannot be a slab.
type SlabError struct{ Err error }

// Error says what is wrong with the file.
func (e *SlabError) Error() string { return "slab: " + e.Err.Error() }

// Unwrap returns the kernel's error.
func (e *SlabError) Unwrap() error { return e.Err }

// newSlab takes ownership of a descriptor of a slab with the given number of entries. It requires a file with seals,
// which only memory has: reading memory never blocks, but a file of a file system in user space, a pipe or a device
// could.
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

// report reads an entry. It returns false if the entry cannot be read or is malformed, as from a closed slab.
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

// each calls fn for the entries in pages that were ever written, and returns how many entries it has read, which may
// exceed limit by less than scanned.
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

// data returns the offset of the first entry, at or after at, whose page has data, or -1 if there is none.
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
