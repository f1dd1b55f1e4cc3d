package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/process"
)

// appLeg is the socket between the gateway and the local application. Until
// clean is called a close resets the application's connection: an end that
// nobody planned must not look like the end of the stream
// (docs/ARCHITECTURE.md "Legs").
//
// It is used either through its bare descriptor, by a shard, or after forRelay
// through conn, by goroutines; never both.
type appLeg struct {
	tuple host.Tuple
	shut  atomic.Bool // closeWrite was called

	// conn is set by forRelay, before others use it.
	conn legConn

	mu    sync.Mutex
	fd    int // -1 after forRelay
	ended bool
}

// legConn is an app leg in the hands of Go's poller. It keeps the descriptor it
// has: net.FileConn would duplicate it, which fails when there are no more, and
// the duplicate would be below the floor.
type legConn struct{ *os.File }

// CloseWrite ends the direction to the application.
func (c legConn) CloseWrite() error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if ctlErr := rc.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) }); ctlErr != nil {
		return ctlErr
	}
	return err
}

// newAppLeg takes a connected, non-blocking TCP socket whose reset-on-close is
// on (SO_LINGER {1, 0}). The application is connected to it by now: one for which
// there is no room above the floor has a right to what is below.
func newAppLeg(fd int, t host.Tuple) *appLeg {
	if moved, err := process.AboveFloor(fd); err == nil {
		fd = moved
	}
	return &appLeg{fd: fd, tuple: t}
}

// errLegClosed is what those find who need a leg whose flow has ended.
var errLegClosed = fmt.Errorf("app leg: %w", net.ErrClosed)

// take returns the descriptor, which closes with the leg.
func (l *appLeg) take() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.fd < 0 {
		return -1, errLegClosed
	}
	return l.fd, nil
}

// forRelay moves the socket into Go's poller. No shard may watch it.
func (l *appLeg) forRelay() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || l.fd < 0 {
		return errLegClosed
	}
	l.conn = legConn{os.NewFile(uintptr(l.fd), "app leg")}
	l.fd = -1
	return nil
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
	l.control(func(fd int) { _ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger) })
	_ = l.conn.Close()
}

// closeWrite tells the application that nothing more comes; of a relay, as what
// follows.
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

// awaitReset waits until the application resets its connection. The error is
// os.ErrDeadlineExceeded after recall, another one when the leg has ended. Of a leg
// in the hands of Go's poller; who calls it is the one reader of the leg, and calls
// attend before it reads again.
func (l *appLeg) awaitReset() error {
	rc, err := l.conn.SyscallConn()
	if err != nil {
		return err
	}
	return rc.Read(func(fd uintptr) bool { return legFailed(int(fd)) })
}

// recall ends awaitReset, whether it has begun or not.
func (l *appLeg) recall() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) }

// attend has the leg read again, after recall.
func (l *appLeg) attend() { _ = l.conn.SetReadDeadline(time.Time{}) }

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

// legDelivered reports whether the kernel has nothing left to deliver to the
// application: TCP is closed (or waits in TIME_WAIT). A descriptor that is no
// TCP socket delivers at once.
func legDelivered(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || info.State == tcpClose
}

// legClosed reports whether TCP is closed on both sides.
func legClosed(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == tcpClose
}

// legFailed reports whether a socket has an error to tell: the application, or its
// kernel, has reset the connection. The error stays.
func legFailed(fd int) bool {
	polled := []unix.PollFd{{Fd: int32(fd)}}
	_, err := unix.Poll(polled, 0)
	for errors.Is(err, unix.EINTR) { // even without waiting: the runtime's signals
		_, err = unix.Poll(polled, 0)
	}
	return err == nil && polled[0].Revents&unix.POLLERR != 0
}

// tcpClose is TCP_CLOSE of the kernel's tcp_states.h.
const tcpClose = 7

// approach has a leg send as the packet's sender does who wants to be known as near.
// The application may ask for that at any time.
func (l *appLeg) approach(look host.Look) {
	if fd, err := l.take(); err == nil {
		_ = host.SetHops(fd, l.tuple.Local.Addr().Is6(), int(look.Near())) // a stand-in of tests has none
	}
}
