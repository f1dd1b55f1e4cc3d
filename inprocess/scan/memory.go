package scan

import (
	"cmp"
	"crypto/sha256"
	"io"
	"os"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// memory reads files that a process has mapped from its memory.
type memory struct {
	proc     string // the process's directory
	mappings []mapping
	listed   bool
}

// place identifies what a process has mapped: as long as it has it, there is no other file with that inode. After that
// another may be mapped at its place; the beginning of the code then differs.
type place struct {
	proc, started string
	begin, end    uint64
	head          [sha256.Size]byte
}

// headSize is how much of a mapping's beginning is part of its place.
const headSize = 4096

// loaded examines the file of a mapping in the memory of its process.
func (s *Scanner) loaded(mem *memory, m mapping, work *budget) *object {
	unread := &object{found: Object{Reasons: []Reason{Unreadable}}}
	head := make([]byte, min(headSize, m.end-m.begin))
	if _, err := mem.ReadAt(head, int64(m.begin)); err != nil {
		return unread
	}
	at := place{mem.proc, procfs.StatIn(mem.proc).Started(), m.begin, m.end, sha256.Sum256(head)}
	return s.once(key{dev: m.device, ino: m.inode, in: at}, work, func() (*object, bool) {
		parts, err := mem.partsOf(m)
		if err != nil {
			return unread, false
		}
		l := &loadedFile{mem, parts}
		im := &image{r: l, size: l.size(), work: work, loaded: true}
		return objectOf(im, im.readHeaders(), false), true
	})
}

// ReadAt implements [io.ReaderAt] for addresses of the process. /proc/PID/mem would not do: only the process's user and
// root may open it.
func (p *memory) ReadAt(b []byte, at int64) (int, error) {
	thread, err := strconv.Atoi(path.Base(p.proc)) // the first one may have ended
	if err != nil || len(b) == 0 {
		return 0, err
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(thread, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	if err == nil && n < len(b) {
		err = io.ErrUnexpectedEOF
	}
	return max(n, 0), err
}

// partsOf returns mappings of the same file as m, by offset; none is within another.
func (p *memory) partsOf(m mapping) ([]mapping, error) {
	if !p.listed {
		f, err := os.Open(p.proc + "/maps")
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if p.mappings, _, err = readMaps(f); err != nil {
			return nil, err
		}
		p.listed = true
	}
	var parts []mapping
	for _, o := range p.mappings {
		if o.device == m.device && o.inode == m.inode {
			parts = append(parts, o)
		}
	}
	slices.SortStableFunc(parts, func(a, b mapping) int { return cmp.Compare(a.offset, b.offset) })
	var covered uint64
	return slices.DeleteFunc(parts, func(o mapping) bool {
		within := o.ends() <= covered
		covered = max(covered, o.ends())
		return within
	}), nil
}

// ends returns where the mapping ends in its file.
func (m *mapping) ends() uint64 { return m.offset + m.end - m.begin }

// loadedFile is a file as far as a process has it mapped.
type loadedFile struct {
	memory io.ReaderAt
	parts  []mapping // by offset, and by end
}

// size returns where the last mapping ends.
func (l *loadedFile) size() int64 {
	if len(l.parts) == 0 {
		return 0
	}
	return int64(l.parts[len(l.parts)-1].ends())
}

// ReadAt implements [io.ReaderAt] for offsets in the file.
func (l *loadedFile) ReadAt(b []byte, from int64) (n int, err error) {
	for n < len(b) {
		at := uint64(from) + uint64(n)
		i, _ := slices.BinarySearchFunc(l.parts, at, func(m mapping, at uint64) int {
			if m.ends() <= at {
				return -1
			}
			return 1
		})
		if i == len(l.parts) || l.parts[i].offset > at {
			return n, io.ErrUnexpectedEOF // not mapped
		}
		m := &l.parts[i]
		more, err := l.memory.ReadAt(b[n:n+int(min(uint64(len(b)-n), m.ends()-at))], int64(m.begin+at-m.offset))
		if n += more; err != nil {
			return n, err
		}
	}
	return n, nil
}
