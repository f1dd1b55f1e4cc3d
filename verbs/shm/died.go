package shm

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Why a peer is down whose rendezvous connection has ended by itself.
var (
	// ErrDied means that the peer's process has ended.
	ErrDied = errors.New("the peer has died")
	// ErrHungUp means that the peer's process lives on: it has closed its
	// device, or the connection was cut.
	ErrHungUp = errors.New("the peer has hung up")
)

// hangUpPatience is how long a process whose connection has ended may take to
// end as well, before it counts as one that lives: the kernel closes a process's
// descriptors first, and one that releases devices takes its time. Nothing waits
// for it but the memory shared with that process.
const hangUpPatience = 250 * time.Millisecond

// peerProcess returns a pidfd of the process at the other end, or -1: Linux has
// SO_PEERPIDFD since 6.5.
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

// processEnds finds out whether the peer's process has ended or lives on. A
// process without a pidfd is taken for dead.
//
// The connection of a process that ends is closed together with its other
// descriptors. If the kernel lets us look (ptrace access: the same user, no
// stricter rules), the absence of descriptors shows the end at once. If not, the
// end of the process is awaited.
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
