package broker

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess"
	"github.com/smcgw/smcgw/inprocess/shared"
)

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

// memories are those of both ends of a connection.
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

// holders tells which ends' processes have memory of the connection: an end has its own to write, and its peer's to read.
func (m *memories) holders() (has [2]bool) {
	for side := range m {
		write, read := elsewhere(m[side].Kept)
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
