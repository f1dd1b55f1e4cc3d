package sysfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ueventGroup is the multicast group of the kernel's own device events.
const ueventGroup = 1

// Changes reports that the kernel added or removed RDMA adapters.
type Changes struct {
	// C receives a value if there was such a change since the last receive.
	C <-chan struct{}

	file    *os.File
	changed chan struct{}
	done    sync.WaitGroup
}

// Listen starts listening.
func Listen() (*Changes, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("uevent socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: ueventGroup}); err != nil {
		return nil, errors.Join(fmt.Errorf("uevent group: %w", err), unix.Close(fd))
	}
	u := &Changes{file: os.NewFile(uintptr(fd), "uevents"), changed: make(chan struct{}, 1)}
	u.C = u.changed
	u.done.Go(u.run)
	return u, nil
}

// run reads until the socket is closed. Lost messages count as a change: loading drivers is what fills the socket.
func (u *Changes) run() {
	buf := make([]byte, 8<<10)
	for {
		n, err := u.file.Read(buf)
		lost := errors.Is(err, unix.ENOBUFS)
		switch {
		case err != nil && !lost:
			return
		case lost || isAdapter(buf[:n]):
			select {
			case u.changed <- struct{}{}:
			default:
			}
		}
	}
}

// isAdapter reports whether a message is about an RDMA adapter: action@path, and
// variables, each ended by a zero byte.
func isAdapter(msg []byte) bool {
	return bytes.Contains(msg, []byte("\x00SUBSYSTEM=infiniband\x00"))
}

// Close stops listening.
func (u *Changes) Close() {
	_ = u.file.Close()
	u.done.Wait()
}
