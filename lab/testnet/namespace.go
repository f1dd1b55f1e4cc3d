package testnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// runDir is where iproute2 and this package keep named namespaces.
const runDir = "/run/netns"

// namePrefix begins the name of every namespace that this package makes. The owner follows: its process id and start
// time, so that a later process can tell a leftover from a namespace in use even if process ids are reused.
const namePrefix = "smcgwt-"

// ownerName returns the part of namespace names that identifies a process.
func ownerName(pid int) (string, error) {
	start, err := startTime(pid)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s%d-%s", namePrefix, pid, start), nil
}

// startTime returns when a process began, in clock ticks since boot.
func startTime(pid int) (string, error) {
	start := procfs.StatOf(pid).Field(22)
	if start == "" {
		return "", fmt.Errorf("start time of process %d: %w", pid, os.ErrNotExist)
	}
	return start, nil
}

// orphaned reports whether a namespace was made by this package and its owner is gone.
func orphaned(name string) bool {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return false
	}
	parts := strings.SplitN(rest, "-", 3)
	if len(parts) < 3 {
		return false
	}
	pid, err := strconv.Atoi(parts[0])
	if err != nil {
		return false
	}
	start, err := startTime(pid)
	return err != nil || start != parts[1]
}

// Sweep removes the namespaces that test processes which no longer exist have left behind, and ends the processes in
// them.
func Sweep() error {
	entries, err := os.ReadDir(runDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep namespaces: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !orphaned(e.Name()) {
			continue
		}
		h, err := netns.GetFromPath(filepath.Join(runDir, e.Name()))
		if err == nil {
			killIn(h)
			_ = h.Close()
		}
		errs = append(errs, deleteNamespace(e.Name()))
	}
	return errors.Join(errs...)
}

func deleteNamespace(name string) error {
	path := filepath.Join(runDir, name)
	// EINVAL (not mounted) means that its creation was interrupted; ENOENT (gone), that another process has swept it
	// concurrently.
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	return nil
}

// shareNames makes the directory of names a mount point, as the first "ip netns add" on a host does. If a process did
// that later, it would mount the names of all namespaces there a second time, and none of them could be removed.
var shareNames = sync.OnceValue(func() error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(runDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil { // other tests may run concurrently
		return err
	}
	err = unix.Mount("", runDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(runDir, runDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", runDir, "none", unix.MS_SHARED|unix.MS_REC, "")
})

// newNamespace creates a named namespace. The caller stays in its own.
func newNamespace(name string) (h netns.NsHandle, err error) {
	if err := shareNames(); err != nil {
		return netns.None(), fmt.Errorf("directory of namespaces %s: %w", runDir, err)
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return netns.None(), fmt.Errorf("current namespace: %w", err)
	}
	defer func() { err = errors.Join(err, goHome(home)) }()
	h, err = netns.NewNamed(name)
	if err != nil {
		return netns.None(), fmt.Errorf("create namespace %s: %w", name, err)
	}
	return h, nil
}

// goHome returns a locked thread to its own namespace. If that fails, the thread remains locked and so ends with its
// goroutine; no other goroutine can ever run in the wrong namespace.
func goHome(home netns.NsHandle) error {
	err := netns.Set(home)
	_ = home.Close()
	if err != nil {
		return fmt.Errorf("leave namespace: %w", err)
	}
	runtime.UnlockOSThread()
	return nil
}

// doIn runs fn on a locked thread inside the namespace h.
func doIn(h netns.NsHandle, fn func() error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("current namespace: %w", err)
	}
	// Deferred, so that fn may also end with t.FailNow or a panic.
	defer func() { err = errors.Join(err, goHome(home)) }()
	if err := netns.Set(h); err != nil {
		return fmt.Errorf("enter namespace: %w", err)
	}
	return fn()
}

// inodeOf returns the inode of a namespace's nsfs file, which identifies the namespace.
func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat namespace: %w", err)
	}
	return st.Ino, nil
}

// processesIn returns the processes whose main thread is in the namespace h, except this process.
func processesIn(h netns.NsHandle) []int {
	want, err := inodeOf(int(h))
	if err != nil {
		return nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		link, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/net"))
		if err == nil && link == fmt.Sprintf("net:[%d]", want) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killIn kills every process in the namespace h, and waits for a bounded time until they are gone. This includes
// daemons that have detached from their parent.
func killIn(h netns.NsHandle) {
	for range 100 {
		pids := processesIn(h)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
