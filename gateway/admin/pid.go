package admin

import (
	"context"
	"fmt"
	"net"
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
	p, err := credOf(conn)
	if err != nil {
		return 0, fmt.Errorf("process of the daemon: %w", err)
	}
	return p.pid, nil
}
