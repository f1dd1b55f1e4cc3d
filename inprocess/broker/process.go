package broker

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

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

// processOf asks the kernel who is at the other end.
func processOf(c *net.UnixConn) (p Process, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return p, fmt.Errorf("process: %w", err)
	}
	var cred *unix.Ucred
	var errCred error
	pidfd := -1
	err = raw.Control(func(fd uintptr) {
		cred, errCred = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPeerPIDFD); err == nil {
			pidfd = n
		}
	})
	defer closeAll(&pidfd)
	if err = errors.Join(err, errCred); err != nil {
		return p, fmt.Errorf("process: %w", err)
	}
	p = Process{UID: cred.Uid, GID: cred.Gid}
	if cred.Pid <= 0 {
		return p, nil
	}
	p.PID = int(cred.Pid)
	p.Exe, _ = os.Readlink(procfs.Living(p.PID) + "/exe")
	p.Cgroup = procfs.CgroupOf(p.PID)
	p.started = procfs.StatOf(p.PID).Started()
	if pidfd >= 0 {
		if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); errors.Is(err, unix.ESRCH) { // the number may be another's now
			p.PID, p.Exe, p.Cgroup, p.started = 0, "", "", ""
		}
	}
	return p, nil
}

// goesOn reports whether it lives, as far as that can be seen. One that has closed all its files since it began to end does
// not.
func (p *Process) goesOn() bool {
	return p.PID != 0 && procfs.StatOf(p.PID).Started() == p.started && !procfs.Ends(p.PID)
}
