package admin

import (
	"context"
	"errors"
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
	pid, err := listenerPID(conn)
	if err != nil {
		return 0, fmt.Errorf("process of the daemon: %w", err)
	}
	return pid, nil
}

// listenerPID returns the process that listens at the other end of a connection, as in DaemonPID.
func listenerPID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var u *unix.Ucred
	var errCred error
	err = raw.Control(func(fd uintptr) { u, errCred = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, errCred); err != nil {
		return 0, err
	}
	return int(u.Pid), nil
}
