package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/procfs"
)

// endPatience is how long the processes of a gateway may take to end after its drain.
const endPatience = 20 * time.Second

// Ending watches the processes of a gateway in order to wait for their end.
type Ending struct{ pidfds []int }

// WatchEnding looks up the processes of a gateway: the daemon, and the guardian that started
// it. A process in another PID namespace cannot be watched, and the caller itself is not
// watched.
func WatchEnding(daemon int) (*Ending, error) {
	e := &Ending{}
	for _, pid := range []int{daemon, GuardianOf(daemon)} {
		if pid <= 1 || pid == os.Getpid() {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case err == nil:
			e.pidfds = append(e.pidfds, fd)
		case !errors.Is(err, unix.ESRCH):
			e.Close()
			return nil, fmt.Errorf("process %d of the gateway: %w", pid, err)
		}
	}
	return e, nil
}

// GuardianOf returns the parent of a daemon if it runs the same program with the same
// arguments, and 0 otherwise.
func GuardianOf(daemon int) int {
	parent := procfs.StatOf(daemon).Parent()
	if parent == 0 {
		return 0
	}
	exe, errExe := os.Stat(File(daemon, "exe"))
	args, errArgs := os.ReadFile(File(daemon, "cmdline"))
	itsExe, errItsExe := os.Stat(File(parent, "exe"))
	itsArgs, errItsArgs := os.ReadFile(File(parent, "cmdline"))
	if errors.Join(errExe, errArgs, errItsExe, errItsArgs) != nil || !os.SameFile(exe, itsExe) || !bytes.Equal(args, itsArgs) {
		return 0
	}
	return parent
}

// File returns the path of a file in /proc about a process.
func File(pid int, file string) string { return "/proc/" + strconv.Itoa(pid) + "/" + file }

// Await waits until the processes have ended: then nothing of the gateway is left.
func (e *Ending) Await(ctx context.Context) error {
	deadline := time.Now().Add(endPatience)
	for _, fd := range e.pidfds {
		for !exited(fd) {
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case time.Now().After(deadline):
				return fmt.Errorf("the gateway has drained, but its processes have not ended after %s", endPatience)
			}
		}
	}
	return nil
}

// exited waits briefly for a process to end, and reports whether it has.
func exited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 50)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// Close stops watching the processes.
func (e *Ending) Close() {
	for _, fd := range e.pidfds {
		_ = unix.Close(fd)
	}
	e.pidfds = nil
}
