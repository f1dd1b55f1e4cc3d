package gateway

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// appConn is what the gateway needs of the socket that faces the local
// application: a kernel TCP socket, or a stand-in on in-memory hosts.
type appConn interface {
	net.Conn
	CloseWrite() error
	SyscallConn() (syscall.RawConn, error)
}

// appLeg is the socket between the gateway and the local application. Until
// clean is called a close resets the application's connection: an end that
// nobody planned must not look like the end of the stream
// (docs/ARCHITECTURE.md "Gateway sockets").
//
// It is used either through its net.Conn (relay) or, after take, through its
// bare descriptor (shard); never both.
type appLeg struct {
	conn  appConn
	tuple Tuple
	shut  atomic.Bool // closeWrite was called

	mu    sync.Mutex
	fd    int // -1 until taken
	ended bool
}

// newAppLeg wraps conn; it must be in the state that reset-on-close is on.
func newAppLeg(conn appConn, t Tuple) *appLeg { return &appLeg{conn: conn, tuple: t, fd: -1} }

// legFloor is the lowest descriptor of an app leg in a shard: above those of
// TUNs and links, which a dying process must close after its sockets. The
// kernel closes the highest first (docs/ARCHITECTURE.md "Traps").
const legFloor = 128

// errLegClosed is what take finds when the flow ended before.
var errLegClosed = fmt.Errorf("app leg: %w", net.ErrClosed)

// take moves the socket out of Go's poller: it returns a descriptor of its
// own, non-blocking, which closes with the leg.
func (l *appLeg) take() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return -1, errLegClosed
	}
	rc, err := l.conn.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("app leg: %w", err)
	}
	fd, dupErr := -1, error(nil)
	if err := rc.Control(func(f uintptr) { fd, dupErr = unix.FcntlInt(f, unix.F_DUPFD_CLOEXEC, legFloor) }); err != nil {
		return -1, fmt.Errorf("app leg: %w", err)
	}
	if dupErr != nil {
		return -1, fmt.Errorf("app leg: duplicate: %w", dupErr)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return -1, errors.Join(fmt.Errorf("app leg: %w", err), unix.Close(fd))
	}
	// The duplicate keeps the socket; closing Go's one only leaves the poller.
	_ = l.conn.Close()
	l.fd = fd
	return fd, nil
}

// reset ends the leg so that the application sees a reset.
func (l *appLeg) reset() { l.finish(true) }

// clean ends the leg after both directions have ended: the kernel delivers
// what is left.
func (l *appLeg) clean() { l.finish(false) }

func (l *appLeg) finish(reset bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	linger := unix.Linger{}
	if reset {
		linger.Onoff = 1
	}
	if l.fd >= 0 {
		_ = unix.SetsockoptLinger(l.fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger)
		_ = unix.Close(l.fd)
		return
	}
	if rc, err := l.conn.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &linger)
		})
	}
	_ = l.conn.Close()
}

// closeWrite tells the application that nothing more comes; for a leg in the
// hands of Go's poller, as what follows.
func (l *appLeg) closeWrite() {
	l.shut.Store(true)
	_ = l.conn.CloseWrite() // a leg that is gone is noticed by its reader
}

// wasReset reports whether an end of stream that was read is a reset in truth.
// A socket tells its error once: when a concurrent write has taken it, reads
// find an end. But only a reset closes a socket that has not been shut down.
func (l *appLeg) wasReset() bool {
	closed := false
	l.control(func(fd int) { closed = legClosed(fd) })
	return closed && !l.shut.Load() // in this order
}

// delivered reports whether the kernel has nothing left to deliver to the
// application.
func (l *appLeg) delivered() bool {
	done := true
	l.control(func(fd int) { done = legDelivered(fd) })
	return done
}

// control calls fn with the descriptor, unless the leg is closed.
func (l *appLeg) control(fn func(fd int)) {
	if rc, err := l.conn.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { fn(int(fd)) })
	}
}
