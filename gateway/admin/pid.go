package admin

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// dial connects to the admin socket.
func (c *Client) dial(ctx context.Context) (*net.UnixConn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, c.unreachable(err)
	}
	return conn.(*net.UnixConn), nil
}

// DaemonPID returns the process that listens on the admin socket, as the kernel reports it to
// a connecting process; 0 if it has no PID in the caller's PID namespace.
func (c *Client) DaemonPID(ctx context.Context) (int, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("process of the daemon: %w", err)
	}
	var u *unix.Ucred
	var errCred error
	err = raw.Control(func(fd uintptr) { u, errCred = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err == nil {
		err = errCred
	}
	if err != nil {
		return 0, fmt.Errorf("process of the daemon: %w", err)
	}
	return int(u.Pid), nil
}
