package legs

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/internal/fdpass"
)

const (
	// patience bounds the wait for one answer of the keeper, which does nothing that takes
	// long.
	patience = 10 * time.Second
	// soon is within which part of that it answers, or is late.
	soon = patience / 10
)

// Namespace is the gateway's hold of the namespace. Its methods may be called from
// any goroutine, and wait for the keeper unless they say otherwise.
type Namespace struct {
	conn     *net.UnixConn
	patience time.Duration // for one answer
	opened   time.Time

	mu    sync.Mutex   // one request at a time; guards owed
	owed  int          // answers to come: each request has one, in order, also one that was given up
	since atomic.Int64 // of the last of them the time behind opened; 0: there is none

	ns, diag, dump *os.File
}

// Open takes over a connection that [Start] has made.
func Open(conn *os.File) (*Namespace, error) {
	c, err := controlConn(conn)
	if err != nil {
		return nil, err
	}
	n := &Namespace{conn: c, patience: patience, opened: time.Now()}
	_, fds, err := n.ask(message{op: opHello})
	if err == nil && len(fds) != 3 {
		fdpass.CloseFDs(fds)
		err = fmt.Errorf("%w: %d descriptors instead of 3", ErrKeeper, len(fds))
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	n.ns = os.NewFile(uintptr(fds[0]), "namespace of the legs")
	n.diag, n.dump = os.NewFile(uintptr(fds[1]), "sock_diag"), os.NewFile(uintptr(fds[2]), "sock_diag")
	return n, nil
}

// File is the namespace; it stays owned by n.
func (n *Namespace) File() *os.File { return n.ns }

// Diag returns two sock_diag sockets of the namespace, one for requests and one
// for dumps; they stay owned by n.
func (n *Namespace) Diag() (request, dump int) { return int(n.diag.Fd()), int(n.dump.Fd()) }

// Device makes a device that has been moved into the namespace the way of all
// packets: whatever arrives is for a socket there, whatever sockets send leaves to
// router, the link address of its other end. settings are sysctls below net. It
// returns the interface index in the namespace.
func (n *Namespace) Device(name string, mtu int, router net.HardwareAddr, settings map[string]string) (int, error) {
	req, err := encode(opDevice, deviceRequest{Name: name, MTU: mtu, Router: router.String(), Settings: settings})
	if err != nil {
		return 0, err
	}
	m, fds, err := n.ask(req)
	fdpass.CloseFDs(fds)
	if err != nil {
		return 0, err
	}
	var a deviceAnswer
	err = m.decode(&a)
	return a.Index, err
}

// Sockets makes at most count legs of a family, 1 to [MaxSockets], and at least
// one: TCP sockets that may be bound to any address, non-blocking, close-on-exec,
// SO_LINGER {1, 0}. They are the caller's.
func (n *Namespace) Sockets(v6 bool, count int) ([]int, error) {
	req, err := encode(opSockets, socketsRequest{V6: v6, Count: count})
	if err != nil {
		return nil, err
	}
	_, fds, err := n.ask(req)
	if err == nil && len(fds) == 0 {
		err = fmt.Errorf("%w: no socket", ErrKeeper)
	}
	return fds, err
}

// Alive reports whether there is a keeper that answers; it does not wait. One that is
// late is there again when it has answered.
func (n *Namespace) Alive() bool {
	events := n.poll()
	if events&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0 {
		return false
	}
	if !n.late() {
		return true
	}
	if events&unix.POLLIN != 0 && n.mu.TryLock() { // else a request hears of it
		defer n.mu.Unlock()
		_ = n.skip()
	}
	return !n.late()
}

// late reports whether the keeper has left a request waiting.
func (n *Namespace) late() bool {
	since := time.Duration(n.since.Load())
	return since != 0 && time.Since(n.opened)-since > soon
}

// poll returns what is to be noticed about the connection.
func (n *Namespace) poll() (events int16) {
	raw, err := n.conn.SyscallConn()
	if err != nil {
		return unix.POLLERR
	}
	fds := []unix.PollFd{{Events: unix.POLLIN | unix.POLLRDHUP}}
	var polled error
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		_, polled = unix.Poll(fds, 0)
		for errors.Is(polled, unix.EINTR) { // even without waiting: the runtime's signals
			_, polled = unix.Poll(fds, 0)
		}
	})
	if err != nil || polled != nil {
		return unix.POLLERR
	}
	return fds[0].Revents
}

// ask sends a request and waits for its answer; the descriptors are the caller's. A
// request behind one that was given up waits for the answers of both.
func (n *Namespace) ask(req message) (message, []int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.skip(); err != nil {
		return message{}, nil, err
	}
	if err := send(n.conn, req); err != nil {
		return message{}, nil, err
	}
	n.owed++
	n.since.Store(int64(time.Since(n.opened)))
	m, fds, err := n.hear()
	if err != nil {
		return message{}, nil, err
	}
	if m.op != answerDone {
		fdpass.CloseFDs(fds)
		return message{}, nil, fmt.Errorf("%w: %w", ErrKeeper, failureOf(m))
	}
	return m, fds, nil
}

// skip takes the answers to requests that were given up, and begins the patience for
// the next one. The caller holds mu.
func (n *Namespace) skip() error {
	if err := n.conn.SetDeadline(time.Now().Add(n.patience)); err != nil {
		return fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	for n.owed > 0 {
		_, fds, err := n.hear()
		fdpass.CloseFDs(fds)
		if err != nil && !errors.Is(err, fdpass.ErrNoDescriptor) && !errors.Is(err, fdpass.ErrTooLong) { // those have come
			return err
		}
	}
	return nil
}

// hear waits for the next answer. The caller holds mu.
func (n *Namespace) hear() (message, []int, error) {
	m, fds, err := receive(n.conn)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		if n.owed--; n.owed == 0 {
			n.since.Store(0)
		}
	}
	return m, fds, err
}

// Close lets the keeper end, and with it the namespace when its sockets have.
func (n *Namespace) Close() error {
	err := n.conn.Close()
	for _, f := range []*os.File{n.ns, n.diag, n.dump} {
		_ = f.Close()
	}
	return err
}
