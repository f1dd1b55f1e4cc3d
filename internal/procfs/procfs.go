package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Cgroup returns the path in the hierarchy of cgroup2 that the text of a /proc/PID/cgroup
// names: its line has the number 0 and no controllers.
func Cgroup(text string) (at string, ok bool) {
	for line := range strings.Lines(text) {
		if at, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return at, true
		}
	}
	return "", false
}

// Living returns the directory of a process, or of one of its threads where the first one has ended: that has no memory,
// no program and no namespaces any more.
func Living(pid int) string { return LivingIn(file(pid, "")) }

// LivingIn is [Living] by the directory of a process.
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

// CgroupOf returns the control group of a process; empty where it cannot be known.
func CgroupOf(pid int) string {
	text, _ := os.ReadFile(file(pid, "cgroup"))
	at, _ := Cgroup(string(text))
	return at
}

// CgroupMount returns where this process sees the first mount of cgroup2.
func CgroupMount() (string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("mountinfo: %w", err)
	}
	return CgroupIn(string(text))
}

// CgroupIn returns the first mount of cgroup2 in the text of a mountinfo: what follows the
// separator " - " are type, source and options. It is [fs.ErrNotExist] where there is none.
func CgroupIn(mountinfo string) (string, error) {
	for line := range strings.Lines(mountinfo) {
		left, _, ok := strings.Cut(line, " - cgroup2 ")
		if fields := strings.Fields(left); ok && len(fields) > 4 {
			return fields[4], nil
		}
	}
	return "", fmt.Errorf("cgroup2 mount: %w", fs.ErrNotExist)
}

// Stat is the text of the stat of a process or thread (proc_pid_stat(5)).
type Stat string

// StatOf reads the numbers of a process; empty if there is none.
func StatOf(pid int) Stat { return StatIn(file(pid, "")) }

// StatIn reads the numbers of a process or thread by its directory.
func StatIn(dir string) Stat {
	text, _ := os.ReadFile(filepath.Join(dir, "stat"))
	return Stat(text)
}

// Field returns a field by its number, from the third on; empty if it is missing. The second
// is a name in brackets that may hold anything.
func (s Stat) Field(n int) string {
	i := strings.LastIndexByte(string(s), ')')
	fields := strings.Fields(string(s[i+1:]))
	if i < 0 || len(fields) <= n-3 {
		return ""
	}
	return fields[n-3]
}

// State returns the letter of the state; empty: there is no such process.
func (s Stat) State() string { return s.Field(3) }

// Parent returns the process that has started this one; 0: unknown.
func (s Stat) Parent() int {
	n, _ := strconv.Atoi(s.Field(4))
	return n
}

// Started tells processes of one number apart; empty: there is no such process.
func (s Stat) Started() string { return s.Field(22) }

// exiting is PF_EXITING of linux/sched.h.
const exiting = 4

// ends reports whether a thread has begun to end: it has let go of its files then, or is about to.
func (s Stat) ends() bool {
	flags, err := strconv.ParseUint(s.Field(9), 10, 64)
	return err != nil || flags&exiting != 0
}

// Ends reports whether all threads of a process have begun to end, or there is none.
func Ends(pid int) bool {
	threads, _ := os.ReadDir(file(pid, "task"))
	return !slices.ContainsFunc(threads, func(t fs.DirEntry) bool { return !StatIn(filepath.Join(file(pid, "task"), t.Name())).ends() })
}

// tick is the unit of processor time on every architecture that Go knows.
const tick = time.Second / 100

// CPU returns the processor time that the process has had; false: unknown.
func (s Stat) CPU() (time.Duration, bool) {
	user, err := strconv.ParseUint(s.Field(14), 10, 48)
	system, errSystem := strconv.ParseUint(s.Field(15), 10, 48)
	if err != nil || errSystem != nil {
		return 0, false
	}
	return time.Duration(user+system) * tick, true
}

// Children lists the processes that the threads of a process have started.
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
