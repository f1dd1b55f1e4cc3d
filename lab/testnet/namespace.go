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

// namePrefix starts the name of every namespace made here. What follows is the
// owner: its process id and start time, so that a later process can tell a
// leftover from a namespace in use even when process ids are recycled.
const namePrefix = "smcgwt-"

// ownerName is the part of namespace names that identifies this process.
func ownerName(pid int) (string, error) {
	start, err := startTime(pid)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s%d-%s", namePrefix, pid, start), nil
}

// startTime is when a process began, in clock ticks since boot.
func startTime(pid int) (string, error) {
	start := procfs.StatOf(pid).Field(22)
	if start == "" {
		return "", fmt.Errorf("start time of process %d: %w", pid, os.ErrNotExist)
	}
	return start, nil
}

// orphaned tells whether a namespace name is ours and its owner is gone.
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

// Sweep removes the namespaces (and ends the processes in them) that test
// processes which no longer exist have left behind.
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
	// Not mounted (EINVAL) is what an interrupted creation leaves behind; gone
	// (ENOENT) is what another process has swept at the same time.
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	return nil
}

// shareNames makes the directory of names a mount point, as the first "ip netns add"
// of a host does. One that did it later would mount the names of all namespaces there
// a second time, and none of them could be removed.
var shareNames = sync.OnceValue(func() error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(runDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil { // beside other tests
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

// newNamespace creates a named namespace without leaving the caller in it.
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

// goHome puts a locked thread back into its own namespace. When that fails the
// thread stays locked, and so dies with its goroutine: no other goroutine can
// ever run in the wrong namespace.
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
	// Deferred, so that fn may also end by t.FailNow or a panic.
	defer func() { err = errors.Join(err, goHome(home)) }()
	if err := netns.Set(h); err != nil {
		return fmt.Errorf("enter namespace: %w", err)
	}
	return fn()
}

// inodeOf identifies a namespace by the inode of its nsfs file.
func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat namespace: %w", err)
	}
	return st.Ino, nil
}

// processesIn lists the processes whose main thread lives in the namespace h,
// but never this process.
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

// killIn ends every process in the namespace h and waits, bounded, until they
// are gone. Daemons that detached from their parent are caught this way.
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
