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

// Process is a client as the kernel identifies it. What cannot be known is 0 or empty: PID, Cgroup, Exe and Name of a
// process that has ended, or whose PID namespace is not below ours.
type Process struct {
	PID      int
	UID, GID uint32
	Cgroup   string // in the unified hierarchy, "/a/b"
	Exe      string
	Name     string // as ss(8) shows it
	started  string // tells it from other processes with its PID
}

// soPeerPIDFD is SO_PEERPIDFD, which Linux has from 6.5 on.
const soPeerPIDFD = 77

// userOf reads the peer's PID, UID and GID from the kernel, and nothing else.
func userOf(raw syscall.RawConn) (p Process, err error) {
	var cred *unix.Ucred
	var errCred error
	err = raw.Control(func(fd uintptr) { cred, errCred = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, errCred); err != nil {
		return p, fmt.Errorf("process: %w", err)
	}
	return Process{PID: max(0, int(cred.Pid)), UID: cred.Uid, GID: cred.Gid}, nil
}

// look fills in what /proc says about the process. It clears all but UID and GID if the process has ended.
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
	p.Name = procfs.NameOf(p.PID)
	p.Cgroup = procfs.CgroupOf(p.PID)
	p.started = procfs.StatOf(p.PID).Started()
	if pidfd < 0 {
		return
	}
	if err := unix.PidfdSendSignal(pidfd, 0, nil, 0); errors.Is(err, unix.ESRCH) { // the PID may be reused
		*p = Process{UID: p.UID, GID: p.GID}
	}
}

// goesOn reports whether the process lives, as far as can be seen. One that is exiting and has closed all its files
// does not.
func (p *Process) goesOn() bool {
	return p.PID != 0 && procfs.StatOf(p.PID).Started() == p.started && !procfs.Ends(p.PID)
}
