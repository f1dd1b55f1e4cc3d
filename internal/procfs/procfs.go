package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Cgroup returns the path in the cgroup2 hierarchy from the text of a /proc/PID/cgroup: that of the line with number 0
// and no controllers.
func Cgroup(text string) (at string, ok bool) {
	for line := range strings.Lines(text) {
		if at, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return at, true
		}
	}
	return "", false
}

// Living returns the directory of a process, or of one of its other threads if the first one has ended. A thread that
// has ended no longer has memory, a program, or namespaces.
func Living(pid int) string { return LivingIn(file(pid, "")) }

// LivingIn is [Living] for the directory of a process.
func LivingIn(dir string) string {
	if _, err := os.Readlink(filepath.Join(dir, "exe")); !errors.Is(err, fs.ErrNotExist) {
		return dir
	}
	threads, _ := os.ReadDir(filepath.Join(dir, "task"))
	for _, t := range threads {
		thread := filepath.Join(dir, "task", t.Name())
		if _, err := os.Readlink(filepath.Join(thread, "exe")); err == nil {
			return thread
		}
	}
	return dir
}

// CgroupOf returns the cgroup of a process, or "" if it cannot be determined.
func CgroupOf(pid int) string {
	at, _ := Cgroup(Cgroups(pid))
	return at
}

// Cgroups returns the text of the cgroup file of a process, or "" if there is none.
func Cgroups(pid int) string {
	text, _ := os.ReadFile(file(pid, "cgroup"))
	return string(text)
}

// MemoryLimit returns the tightest limit on memory, in bytes, among the cgroups of the text of a /proc/PID/cgroup and
// those above them, and the path of the cgroup that has it. They are 0 and "" if there is none, or it cannot be read.
func MemoryLimit(text string) (cgroup string, limit int64) { return memoryIn("/sys/fs/cgroup", text) }

func memoryIn(mount, text string) (cgroup string, limit int64) {
	at, _ := Cgroup(text)
	files := []string{"memory.max", "memory.high"}
	for line := range strings.Lines(text) { // version 1 may have the controller in a hierarchy of its own
		if f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(f) == 3 && slices.Contains(strings.Split(f[1], ","), "memory") {
			at, mount, files = f[2], filepath.Join(mount, "memory"), []string{"memory.limit_in_bytes"}
		}
	}
	const unlimited = 1 << 60 // or more, in version 1
	for ; len(at) > 1; at = path.Dir(at) {
		for _, name := range files {
			b, _ := os.ReadFile(filepath.Join(mount, at, name))
			n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			if err == nil && n < unlimited && (cgroup == "" || n < limit) {
				cgroup, limit = at, n
			}
		}
	}
	return cgroup, limit
}

// NameOf returns the name of a process as ss(8) shows it, or "" if it cannot be determined. The file's name would not
// do: a program may be started through a link.
func NameOf(pid int) string {
	text, _ := os.ReadFile(file(pid, "comm"))
	return strings.TrimSuffix(string(text), "\n")
}

// CgroupMount returns where the first cgroup2 mount is for this process.
func CgroupMount() (string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("mountinfo: %w", err)
	}
	return CgroupIn(string(text))
}

// CgroupIn returns the first cgroup2 mount in the text of a mountinfo file, where type, source and options follow the
// separator " - ". It returns [fs.ErrNotExist] if there is none.
func CgroupIn(mountinfo string) (string, error) {
	for line := range strings.Lines(mountinfo) {
		left, _, ok := strings.Cut(line, " - cgroup2 ")
		if fields := strings.Fields(left); ok && len(fields) > 4 {
			return fields[4], nil
		}
	}
	return "", fmt.Errorf("cgroup2 mount: %w", fs.ErrNotExist)
}

// Value returns the value of a line of a file such as status or meminfo, where a colon follows the name.
func Value(text, name string) (value string, ok bool) {
	for line := range strings.Lines(text) {
		if value, ok = strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}

// Bytes returns a value that is a number of kB, in bytes.
func Bytes(text, name string) (n int64, ok bool) {
	value, _ := Value(text, name)
	kib, err := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 53)
	return int64(kib) << 10, err == nil && strings.HasSuffix(value, " kB")
}

// Stat is the contents of the stat file of a process or thread (proc_pid_stat(5)).
type Stat string

// StatOf returns the stat of a process, or "" if there is none.
func StatOf(pid int) Stat { return StatIn(file(pid, "")) }

// StatIn returns the stat of a process or thread, given its directory.
func StatIn(dir string) Stat {
	text, _ := os.ReadFile(filepath.Join(dir, "stat"))
	return Stat(text)
}

// Field returns field number n, from the third on, or "" if it is missing. The second field is a name in parentheses
// that may contain anything.
func (s Stat) Field(n int) string {
	i := strings.LastIndexByte(string(s), ')')
	fields := strings.Fields(string(s[i+1:]))
	if i < 0 || len(fields) <= n-3 {
		return ""
	}
	return fields[n-3]
}

// State returns the letter of the state, or "" if there is no such process.
func (s Stat) State() string { return s.Field(3) }

// Parent returns the parent process, or 0 if unknown.
func (s Stat) Parent() int {
	n, _ := strconv.Atoi(s.Field(4))
	return n
}

// Started returns the start time, which distinguishes processes with the same number, or "" if there is no such
// process.
func (s Stat) Started() string { return s.Field(22) }

// exiting is PF_EXITING of linux/sched.h.
const exiting = 4

// ends reports whether a thread has begun to exit: it has released its files, or is about to.
func (s Stat) ends() bool {
	flags, err := strconv.ParseUint(s.Field(9), 10, 64)
	return err != nil || flags&exiting != 0
}

// Ends reports whether all threads of a process have begun to exit, or there is no such process.
func Ends(pid int) bool {
	threads, _ := os.ReadDir(file(pid, "task"))
	return !slices.ContainsFunc(threads, func(t fs.DirEntry) bool { return !StatIn(filepath.Join(file(pid, "task"), t.Name())).ends() })
}

// tick is the unit of processor time on every architecture that Go supports.
const tick = time.Second / 100

// CPU returns the processor time that the process has used, or false if unknown.
func (s Stat) CPU() (time.Duration, bool) {
	user, err := strconv.ParseUint(s.Field(14), 10, 48)
	system, errSystem := strconv.ParseUint(s.Field(15), 10, 48)
	if err != nil || errSystem != nil {
		return 0, false
	}
	return time.Duration(user+system) * tick, true
}

// Children returns the processes that the threads of a process have started.
func Children(pid int) (pids []int) {
	files, _ := filepath.Glob(file(pid, "task/*/children"))
	for _, name := range files {
		text, _ := os.ReadFile(name)
		for word := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(word); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

func file(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}
