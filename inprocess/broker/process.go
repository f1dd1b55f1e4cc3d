package broker

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess/shared"
	"github.com/smcgw/smcgw/internal/procfs"
)

// Process is a client as the kernel names it. What cannot be known is 0 or empty: PID, Cgroup and Exe of a process
// in a PID namespace that is not below ours, or that has ended.
type Process struct {
	PID      int
	UID, GID uint32
	Cgroup   string // in the unified hierarchy, "/a/b"
	Exe      string
	started  string // tells it from others with its PID
}

// soPeerPIDFD is SO_PEERPIDFD, from Linux 6.5 on.
const soPeerPIDFD = 77

// userOf asks the kernel who is at the other end, and no more of it than its numbers.
func userOf(raw syscall.RawConn) (p Process, err error) {
	var cred *unix.Ucred
	var errCred error
	err = raw.Control(func(fd uintptr) { cred, errCred = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, errCred); err != nil {
		return p, fmt.Errorf("process: %w", err)
	}
	return Process{PID: max(0, int(cred.Pid)), UID: cred.Uid, GID: cred.Gid}, nil
}

// look looks at the process, which is the one at the other end.
func (p *Process) look(raw syscall.RawConn) {
	if p.PID == 0 {
		return
	}
	pidfd := -1
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPeerPIDFD); err == nil {
			pidfd = n
		}
	})
	defer shared.Close(&pidfd)
	p.Exe, _ = os.Readlink(procfs.Living(p.PID) + "/exe")
	p.Cgroup = procfs.CgroupOf(p.PID)
	p.started = procfs.StatOf(p.PID).Started()
	if pidfd < 0 {
		return
	}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); errors.Is(err, unix.ESRCH) { // the number may be another's now
		*p = Process{UID: p.UID, GID: p.GID}
	}
}

// goesOn reports whether it lives, as far as that can be seen. One that has closed all its files since it began to end does
// not.
func (p *Process) goesOn() bool {
	return p.PID != 0 && procfs.StatOf(p.PID).Started() == p.started && !procfs.Ends(p.PID)
}
