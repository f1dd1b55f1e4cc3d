package admin

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// access is what a peer of the admin socket may do.
type access int

const (
	accessNone  access = iota
	accessRead         // nouns: members of the socket's group
	accessWrite        // verbs: root and the daemon's own user
)

// peerCred describes the process at the other end of a connection, as the kernel saw it when it
// connected, or listened.
type peerCred struct {
	pid    int // 0 if it has none in this PID namespace
	uid    uint32
	groups []uint32 // primary and supplementary
}

// access returns what a peer may do on a socket of group gid. The socket's mode enforces the
// same in the kernel; this check holds even if the mode was loosened.
func (p peerCred) access(gid uint32) access {
	switch {
	case p.uid == 0 || p.uid == uint32(os.Geteuid()):
		return accessWrite
	case slices.Contains(p.groups, gid):
		return accessRead
	default:
		return accessNone
	}
}

// credOf asks the kernel which process is at the other end of the connection.
func credOf(c *net.UnixConn) (peerCred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return peerCred{}, err
	}
	var p peerCred
	var errCred error
	err = raw.Control(func(fd uintptr) {
		var u *unix.Ucred
		if u, errCred = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); errCred != nil {
			return
		}
		p = peerCred{pid: int(u.Pid), uid: u.Uid, groups: append(peerGroups(int(fd)), u.Gid)}
	})
	if err != nil {
		return peerCred{}, err
	}
	return p, errCred
}

// peerKey is the key of a connection's access in a request's context.
type peerKey struct{}

// withPeer is http.Server.ConnContext: it determines the access once per connection. A peer
// whose credentials are unavailable may do nothing.
func (s *adminSocket) withPeer(ctx context.Context, c net.Conn) context.Context {
	if l, ok := c.(*limitedConn); ok {
		c = l.Conn
	}
	return context.WithValue(ctx, peerKey{}, s.accessOf(c))
}

// accessOf returns what the peer of a connection may do, according to the kernel.
func (s *adminSocket) accessOf(c net.Conn) access {
	if u, ok := c.(*net.UnixConn); ok {
		if p, err := credOf(u); err == nil {
			return p.access(s.gid)
		}
	}
	return accessNone
}

// mayWrite reports whether the peer of a connection may change something.
func (s *adminSocket) mayWrite(c net.Conn) bool { return s.accessOf(c) == accessWrite }

// peerAccess returns the access stored by withPeer.
func peerAccess(ctx context.Context) access {
	a, _ := ctx.Value(peerKey{}).(access)
	return a
}

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
