package memhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pairs makes connected TCP sockets of this machine's own kernel: a descriptor
// for the gateway's event loop, and the end a bridge works on.
type pairs struct {
	mu       sync.Mutex // one pair at a time
	listener *net.TCPListener
}

// pairTimeout bounds what never waits on a sane machine.
const pairTimeout = 2 * time.Second

func newPairs() (*pairs, error) {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		if l, err = lc.Listen(context.Background(), "tcp", "[::1]:0"); err != nil {
			return nil, fmt.Errorf("loopback socket: %w", err)
		}
	}
	return &pairs{listener: l.(*net.TCPListener)}, nil
}

// pair returns both ends of a new connection, the gateway's as a non-blocking
// descriptor. A close of that resets it until it is told otherwise
// (host.Legs).
func (p *pairs) pair() (gateway int, bridge *net.TCPConn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := net.Dialer{Timeout: pairTimeout, KeepAlive: -1}
	c, err := d.Dial("tcp", p.listener.Addr().String())
	if err != nil {
		return -1, nil, fmt.Errorf("loopback socket: %w", err)
	}
	defer c.Close()
	own := c.(*net.TCPConn)
	gateway = -1
	if bridge, err = p.accept(own.LocalAddr()); err == nil {
		gateway, err = descriptor(own)
	}
	if err != nil && bridge != nil {
		err = errors.Join(err, bridge.Close())
	}
	if err != nil {
		return -1, nil, fmt.Errorf("loopback socket: %w", err)
	}
	return gateway, bridge, nil
}

// descriptor returns a duplicate of the socket, which resets when it is closed.
func descriptor(c *net.TCPConn) (fd int, err error) {
	if err := c.SetLinger(0); err != nil {
		return -1, err
	}
	rc, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd = -1
	dup := func(f uintptr) { fd, err = unix.FcntlInt(f, unix.F_DUPFD_CLOEXEC, 0) }
	if cerr := rc.Control(dup); cerr != nil {
		return -1, cerr
	}
	return fd, err
}

// accept waits for the connection from one address; others are closed.
func (p *pairs) accept(from net.Addr) (*net.TCPConn, error) {
	if err := p.listener.SetDeadline(time.Now().Add(pairTimeout)); err != nil {
		return nil, err
	}
	for {
		c, err := p.listener.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if c.RemoteAddr().String() == from.String() {
			return c, nil
		}
		_ = c.Close()
	}
}

func (p *pairs) close() error { return p.listener.Close() }
