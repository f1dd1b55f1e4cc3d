package scan

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

const (
	maxMaps    = 16 << 20 // bytes of a process's list of mappings
	maxQueried = 16 << 10 // executable mappings of a process
	maxObjects = 4096     // executable files of one process
)

// mapping is a mapping of a process.
type mapping struct {
	begin, end uint64
	executable bool
	offset     uint64 // of begin in the file
	device     uint64
	inode      uint64
	path       string // empty if there is no file
}

// errUnread reports a process of which only a part could be examined.
var errUnread = errors.New("a part of the program's code could not be read")

// RawCalls tells whether a process may read or write a socket without libc. It returns an error, and true, for one that
// could not be examined.
func (s *Scanner) RawCalls(pid int) (bool, error) {
	r, err := s.Process(pid)
	switch {
	case err != nil:
		return true, err
	case slices.Equal(r.Reasons, []Reason{Unreadable}):
		return true, errUnread
	default:
		return !r.Promotable(), nil
	}
}

// Process examines what a process has mapped now. It does not see a library that is loaded later, so the caller must
// ask again when it learns of one. It needs permission to read /proc/PID/maps. Files are opened through
// /proc/PID/map_files or, if that is refused, by name through /proc/PID/root, provided that it is still the same file.
// One that was replaced since, as by an upgrade, is read from the memory of the process.
func (s *Scanner) Process(pid int) (*Result, error) {
	proc := procfs.LivingIn(path.Join(s.root, "proc", strconv.Itoa(pid)))
	f, err := os.Open(proc + "/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mappings, whole, err := executable(f)
	if err != nil {
		return nil, fmt.Errorf("%s/maps: %w", proc, err)
	}
	program, err := os.Readlink(proc + "/exe")
	if err != nil {
		return nil, err
	}
	r := &Result{Program: program, Reasons: []Reason{}}
	exe, st, err := openRegular(proc + "/exe")
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	work := newBudget()
	mem := &memory{proc: proc}
	ob := s.opened(exe, st, false, work)
	r.head(s.arch, ob)
	r.add(program, ob)
	type file struct{ device, inode uint64 }
	seen := map[file]bool{}
	for _, m := range mappings {
		id := file{m.device, m.inode}
		switch {
		case m.path == "[vdso]", m.path == "[vsyscall]":
			continue
		case m.inode == 0:
			r.Generated += m.end - m.begin
			continue
		case m.path == program, seen[id]: // the program was examined above
			continue
		}
		seen[id] = true
		if len(seen) > maxObjects {
			r.Reasons = with(r.Reasons, Unreadable)
			break
		}
		s.mapped(r, mem, m, work)
	}
	if !whole {
		r.Reasons = with(r.Reasons, Unreadable)
	}
	slices.SortStableFunc(r.Objects, sortedByPath(program))
	return r, nil
}

// executable returns the executable mappings in an open /proc/PID/maps. whole tells whether these are all.
func executable(f *os.File) (list []mapping, whole bool, err error) {
	if list = queryMaps(f, maxQueried); list != nil {
		return list, len(list) <= maxQueried, nil
	}
	list, whole, err = readMaps(f)
	return slices.DeleteFunc(list, func(m mapping) bool { return !m.executable }), whole, err
}

// readMaps returns the mappings in the text of an open /proc/PID/maps. whole tells whether these are all.
func readMaps(f io.Reader) (list []mapping, whole bool, err error) {
	text, err := io.ReadAll(io.LimitReader(f, maxMaps+1))
	if err != nil {
		return nil, false, err
	}
	list, err = parseMaps(text)
	return list, len(text) <= maxMaps, err
}

// mapped adds the file of a mapping to the result.
func (s *Scanner) mapped(r *Result, mem *memory, m mapping, work *budget) {
	name := strings.TrimSuffix(m.path, " (deleted)")
	libc := isLibc(name)
	f, st, err := openRegular(fmt.Sprintf("%s/map_files/%x-%x", mem.proc, m.begin, m.end))
	if err != nil {
		f, st, err = openRegular(path.Join(mem.proc, "root", name))
		if err == nil && st.Ino != m.inode {
			err = errors.Join(unix.ESTALE, f.Close())
		}
	}
	var ob *object
	switch {
	case err == nil:
		ob = s.opened(f, st, libc, work)
		_ = f.Close()
	case libc: // not searched, so there is no need to read it
		r.Scanned++
		return
	default:
		ob = s.loaded(mem, m, work)
	}
	if slices.Contains(ob.found.Reasons, NotELF) && strings.HasPrefix(m.path, "/memfd:") {
		r.Generated += m.end - m.begin // a compiler that maps its code twice
		return
	}
	r.add(m.path, ob)
}

// errMaps reports a line that is not a mapping.
var errMaps = errors.New("no list of mappings")

// parseMaps parses the mappings of /proc/PID/maps (proc_pid_maps(5)). An incomplete last line is an error,
// unless the list was too long.
func parseMaps(text []byte) ([]mapping, error) {
	var list []mapping
	for line := range strings.Lines(string(text)) {
		line, whole := strings.CutSuffix(line, "\n")
		if !whole {
			if len(text) > maxMaps {
				break
			}
			return nil, fmt.Errorf("%w: %q is cut short", errMaps, line)
		}
		fields := strings.SplitN(line, " ", 6)
		if len(fields) < 5 || len(fields[1]) != 4 {
			return nil, fmt.Errorf("%w: %q", errMaps, line)
		}
		from, to, _ := strings.Cut(fields[0], "-")
		major, minor, _ := strings.Cut(fields[3], ":")
		var m mapping
		var errs [6]error
		m.begin, errs[0] = strconv.ParseUint(from, 16, 64)
		m.end, errs[1] = strconv.ParseUint(to, 16, 64)
		high, err := strconv.ParseUint(major, 16, 32)
		errs[2] = err
		low, err := strconv.ParseUint(minor, 16, 32)
		errs[3] = err
		m.inode, errs[4] = strconv.ParseUint(fields[4], 10, 64)
		m.offset, errs[5] = strconv.ParseUint(fields[2], 16, 64)
		if err := errors.Join(errs[:]...); err != nil || m.end < m.begin {
			return nil, fmt.Errorf("%w: %q", errMaps, line)
		}
		m.device = unix.Mkdev(uint32(high), uint32(low))
		if len(fields) == 6 {
			m.path = strings.TrimLeft(fields[5], " ")
		}
		m.executable = fields[1][2] == 'x'
		list = append(list, m)
	}
	return list, nil
}
