package shm

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Reasons why a peer is down whose rendezvous connection has hung up.
var (
	// ErrDied means that the peer's process has ended.
	ErrDied = errors.New("the peer has died")
	// ErrHungUp means that the peer's process is alive: it has closed its device, or the connection was cut.
	ErrHungUp = errors.New("the peer has hung up")
)

// hangUpPatience is how long after its connection a process may take to end before it counts as alive: the kernel
// closes a process's descriptors first, and releasing devices may take time. Only the memory shared with that process
// waits for this.
const hangUpPatience = 250 * time.Millisecond

// peerProcess returns a pidfd of the process at the other end, or -1 before Linux 6.5, which added SO_PEERPIDFD.
func peerProcess(c *net.UnixConn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1
	}
	fd := -1
	_ = raw.Control(func(s uintptr) {
		if n, err := unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
			fd = n
		}
	})
	return fd
}

// processEnds reports whether the peer's process has ended. Without a pidfd it is assumed to have.
//
// When a process ends, its connection is closed together with its other descriptors. If the kernel allows us to look
// (ptrace access: the same user, no stricter rules), missing descriptors prove the end immediately. Otherwise the end
// of the process is awaited, for hangUpPatience.
func (p *Peer) processEnds() bool {
	if p.pidfd < 0 {
		return true
	}
	switch fd, err := unix.PidfdGetfd(p.pidfd, 0, 0); {
	case err == nil:
		_ = unix.Close(fd)
		return false
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EBADF):
		return true
	}
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for until := time.Now().Add(hangUpPatience); ; {
		n, err := unix.Poll(fds, max(0, int(time.Until(until).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return true
		default:
			return n > 0
		}
	}
}
