package scan

import (
	"cmp"
	"container/list"
	"errors"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// isLibc tells whether a file belongs to libc or its loader, or is our own library: the
// library interposes what these do for the program.
func isLibc(file string) bool {
	base := path.Base(file)
	stem, _, so := strings.Cut(base, ".so")
	if !so {
		return false
	}
	if strings.HasPrefix(stem, "ld-") || strings.HasPrefix(stem, "libsmcgw") || strings.HasPrefix(base, "libc.musl-") || strings.HasPrefix(base, "ld64.so") {
		return true
	}
	stem, version, _ := strings.Cut(stem, "-2.") // libc-2.31.so
	if strings.Trim(version, "0123456789") != "" {
		return false
	}
	switch stem {
	case "libc", "libpthread", "librt", "libdl", "libm", "libmvec", "libresolv", "libanl", "libutil", "libnsl", "libBrokenLocale", "libthread_db":
		return true
	default:
		return strings.HasPrefix(stem, "libnss_files") || strings.HasPrefix(stem, "libnss_dns") || strings.HasPrefix(stem, "libnss_compat")
	}
}

// Result is what was found about a program or a process.
type Result struct {
	// Program is the file that is loaded.
	Program string `json:"program"`
	Arch    Arch   `json:"arch,omitempty"`
	Libc    Libc   `json:"libc,omitempty"`
	// Reasons are why its connections stay native; without any they can be promoted.
	Reasons []Reason `json:"reasons"`
	// Objects are the files with reasons of their own, the program first. Scanned counts the files examined. Missing
	// names libraries that were not found.
	Objects []Object `json:"objects,omitempty"`
	Scanned int      `json:"scanned"`
	Missing []string `json:"missing,omitempty"`
	// Generated counts the bytes of a process's executable memory without a file: code that it has compiled itself.
	// It is not scanned and is no reason, because such compilers call libc.
	Generated uint64 `json:"generated_bytes,omitempty"`
}

// Promotable tells whether the program's connections can be promoted.
func (r *Result) Promotable() bool { return len(r.Reasons) == 0 }

// add adds the findings about a file to the result.
func (r *Result) add(file string, ob *object) {
	r.Scanned++
	if len(ob.found.Reasons) == 0 {
		return
	}
	o := ob.found
	o.Path = file
	r.Objects = append(r.Objects, o)
	r.Reasons = with(r.Reasons, o.Reasons...)
}

// cached bounds the number of files in a scanner's cache.
const cached = 512

// key identifies the state of a file.
type key struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
	libc         bool
	in           place // for what was read from memory
}

// Scanner scans programs, and caches results by file. It is safe for concurrent use.
type Scanner struct {
	arch Arch // of this machine
	root string

	mu     sync.Mutex
	byKey  map[key]*list.Element // elements of recent
	recent *list.List            // most recently used first
}

type remembered struct {
	key    key
	object *object
}

// New returns a scanner for the programs of this machine.
func New() *Scanner {
	s := &Scanner{byKey: map[key]*list.Element{}, recent: list.New(), root: "/"}
	switch runtime.GOARCH {
	case "amd64":
		s.arch = X86_64
	case "arm64":
		s.arch = ARM64
	}
	return s
}

// Program examines a program and the libraries that it names, as they are on this host. It fails if there is no such
// file, or if it cannot be read.
func (s *Scanner) Program(file string) (*Result, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	r := &Result{Program: file, Reasons: []Reason{}}
	work := newBudget()
	ob, st, err := s.file(file, work)
	if err != nil {
		return nil, err
	}
	r.head(s.arch, ob)
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 || hasCapabilities(s.root+file) {
		r.Reasons = with(r.Reasons, Setuid)
	}
	r.add(file, ob)
	s.libraries(r, ob, work)
	return r, nil
}

// head records what the program itself determines for the whole.
func (r *Result) head(here Arch, ob *object) {
	r.Arch = ob.arch
	if ob.arch == "" {
		return // the object has its own reason
	}
	if ob.arch != here {
		r.Reasons = with(r.Reasons, OtherArch)
	}
	if ob.interpreter == "" {
		r.Reasons = with(r.Reasons, Static)
		return
	}
	if r.Libc = libcOf(ob.interpreter); r.Libc == "" {
		r.Reasons = with(r.Reasons, OtherLibc)
	}
}

// hasCapabilities tells whether the file has capabilities(7).
func hasCapabilities(file string) bool {
	n, err := unix.Getxattr(file, "security.capability", nil)
	return err == nil && n > 0
}

// maxLibraries bounds the libraries of one program.
const maxLibraries = 2048

// libraries adds the libraries that a program names, directly or indirectly.
func (s *Scanner) libraries(r *Result, program *object, work *budget) {
	type link struct {
		name  string
		from  string // the file that names it
		names *object
	}
	paths := s.directories(r.Libc)
	seen := map[string]bool{}
	var todo []link
	push := func(from string, ob *object) {
		for _, name := range ob.needed {
			todo = append(todo, link{name, from, ob})
		}
	}
	push(r.Program, program)
	for len(todo) > 0 && len(seen) < maxLibraries {
		l := todo[0]
		todo = todo[1:]
		if seen[l.name] || isLibc(l.name) {
			continue
		}
		seen[l.name] = true
		found := ""
		for _, candidate := range paths.candidates(l.name, l.from, l.names, program) {
			ob, _, err := s.file(candidate, work)
			if err != nil || ob.arch != program.arch {
				continue
			}
			found = candidate
			r.add(candidate, ob)
			push(candidate, ob)
			break
		}
		if found == "" {
			r.Missing = append(r.Missing, l.name)
			r.Reasons = with(r.Reasons, Missing)
		}
	}
	if len(todo) > 0 && len(seen) >= maxLibraries {
		r.Reasons = with(r.Reasons, Unreadable)
	}
}

// open opens a regular file.
func (s *Scanner) open(file string) (*os.File, unix.Stat_t, error) {
	return openRegular(path.Join(s.root, file))
}

func openRegular(file string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, st, err
	}
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EINVAL
	}
	if err != nil {
		return nil, st, errors.Join(&os.PathError{Op: "open", Path: file, Err: err}, f.Close())
	}
	return f, st, nil
}

// file examines a file within a budget, or returns the cached result.
func (s *Scanner) file(file string, work *budget) (*object, unix.Stat_t, error) {
	f, st, err := s.open(file)
	if err != nil {
		return nil, st, err
	}
	defer f.Close()
	return s.opened(f, st, false, work), st, nil
}

// opened examines an open file within a budget, or returns the cached result.
func (s *Scanner) opened(f *os.File, st unix.Stat_t, libc bool, work *budget) *object {
	k := key{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim, libc: libc}
	return s.once(k, work, func() (*object, bool) {
		ob := readObject(f, st.Size, libc, work)
		var after unix.Stat_t
		err := unix.Fstat(int(f.Fd()), &after)
		return ob, err == nil && after.Mtim == st.Mtim && after.Size == st.Size // not written meanwhile
	})
}

// once returns the cached result, or what examine finds and whether that is of one state of the file.
func (s *Scanner) once(k key, work *budget, examine func() (ob *object, steady bool)) *object {
	s.mu.Lock()
	if e := s.byKey[k]; e != nil {
		s.recent.MoveToFront(e)
		s.mu.Unlock()
		return e.Value.(*remembered).object
	}
	s.mu.Unlock()
	ob, steady := examine()        // two goroutines may do so at a time
	if work.left == 0 || !steady { // the next examination may get further, as it finds others cached
		ob.found.Reasons = with(ob.found.Reasons, Unreadable)
		return ob
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[k] == nil {
		s.byKey[k] = s.recent.PushFront(&remembered{k, ob})
	}
	for s.recent.Len() > cached {
		e := s.recent.Back()
		delete(s.byKey, s.recent.Remove(e).(*remembered).key)
	}
	return ob
}

// sortedByPath orders objects by path, the program first.
func sortedByPath(program string) func(a, b Object) int {
	return func(a, b Object) int {
		if (a.Path == program) != (b.Path == program) {
			if a.Path == program {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Path, b.Path)
	}
}

// Reason is why the connections of a program stay native. Its values appear in output.
type Reason string

// The reasons.
const (
	// NotELF: the file is neither a Linux program nor a library.
	NotELF Reason = "not_elf"
	// Malformed: its tables point outside of the file, or contradict each other.
	Malformed Reason = "malformed"
	// OtherArch: it is for neither x86-64 nor arm64, or not for this machine.
	OtherArch Reason = "other_arch"
	// Static: it has no loader, so nothing can be preloaded.
	Static Reason = "static"
	// OtherLibc: its loader is neither glibc's nor musl's.
	OtherLibc Reason = "other_libc"
	// Setuid: it gains privileges from its file, and the loader ignores LD_PRELOAD.
	Setuid Reason = "setuid"
	// GoRuntime: Go's runtime makes its system calls itself.
	GoRuntime Reason = "go_runtime"
	// RawCalls: it has instructions outside of libc that may move bytes of a socket, or hand it over.
	RawCalls Reason = "raw_calls"
	// IOUring: the kernel reads and writes on its own, without a call.
	IOUring Reason = "io_uring"
	// Missing: a library that it names was not found.
	Missing Reason = "missing_library"
	// Unreadable: a mapped file cannot be read, or there is too much of it.
	Unreadable Reason = "unreadable"
)

// Meaning explains the reason in one sentence without a full stop.
func (r Reason) Meaning() string {
	switch r {
	case NotELF:
		return "it is no program that the loader of libc starts"
	case Malformed:
		return "its ELF tables contradict each other"
	case OtherArch:
		return "it is built for another processor than the library"
	case Static:
		return "it is linked statically, so no library can be loaded before it"
	case OtherLibc:
		return "its loader is neither glibc's nor musl's"
	case Setuid:
		return "its file gives it rights (set-user-ID, set-group-ID or capabilities), and the loader then ignores LD_PRELOAD"
	case GoRuntime:
		return "the runtime of Go makes its system calls past libc"
	case RawCalls:
		return "it has system call instructions outside of libc that may touch a socket"
	case IOUring:
		return "it uses io_uring, by which the kernel reads and writes sockets past libc"
	case Missing:
		return "a library that it names is not found here, so it does not start as it is"
	case Unreadable:
		return "a part of its code could not be read"
	default:
		return string(r)
	}
}
