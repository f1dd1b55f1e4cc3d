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
	room     room
}

// room is what the memory limit of a cgroup leaves for the rings of the programs in it, which the kernel charges to the
// cgroup of the program that writes into them. Rings do not shrink under pressure as a socket's buffers do, so they get
// an eighth of the limit. The zero value means that there is no limit.
type room struct {
	cgroup string
	bytes  int64
}

const roomShare = 8 // of a cgroup's limit

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
	cgroups := procfs.Cgroups(p.PID)
	p.Cgroup, _ = procfs.Cgroup(cgroups)
	cgroup, limit := procfs.MemoryLimit(cgroups)
	p.room = room{cgroup, limit / roomShare}
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

// Place identifies a broker's socket in the file system, where others can remove it or put their own in its place.
type Place struct {
	path    string
	dev     uint64
	ino     uint64
	created unix.Timespec
}

// PlaceOf returns the place of a socket that has just been made.
func PlaceOf(path string) (Place, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Place{}, fmt.Errorf("socket %s: %w", path, err)
	}
	return Place{path, st.Dev, st.Ino, st.Mtim}, nil
}

// Ours reports whether the socket is still there.
func (p Place) Ours() bool {
	now, err := PlaceOf(p.path)
	return err == nil && now == p
}

// Remove removes the socket if it is still ours.
func (p Place) Remove() {
	if p.Ours() {
		_ = os.Remove(p.path)
	}
}

// othersSize bounds the connections in each of the two generations.
const othersSize = 32768

// others records how many ring bytes are already counted of connections that this broker does not have, or no more:
// those of an earlier broker, and those that go on although their program has disconnected from this one. It forgets
// the connections that it has not heard of for longest.
type others struct{ now, old map[uint64]uint64 }

// more takes the total that a connection has moved and returns the part that is not counted yet: none for a connection
// seen for the first time, since it is another broker's.
func (o *others) more(id, moved uint64) uint64 {
	was, known := o.now[id]
	if !known {
		was, known = o.old[id]
	}
	if !known {
		was = moved
	}
	o.set(id, max(was, moved))
	return max(was, moved) - was
}

// set records how much of a connection is counted.
func (o *others) set(id, moved uint64) {
	if _, known := o.now[id]; !known && (o.now == nil || len(o.now) >= othersSize) {
		o.now, o.old = map[uint64]uint64{}, o.now
	}
	o.now[id] = moved
}
