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
	// patience bounds the wait for one answer of the keeper, which does nothing slow.
	patience = 10 * time.Second
	// soon is the time after which an answer is late.
	soon = patience / 10
)

// client is the gateway's end of the connection to one keeper.
type client struct {
	conn     *net.UnixConn
	patience time.Duration // for one answer
	opened   time.Time

	mu    sync.Mutex   // one request at a time; guards owed
	owed  int          // answers outstanding: every request gets one, in order, even one whose wait timed out
	since atomic.Int64 // when the last request was sent, after opened; 0 if none is outstanding
}

// newClient returns a client for a connection, and closes its file.
func newClient(conn *os.File) (*client, error) {
	c, err := controlConn(conn)
	if err != nil {
		return nil, err
	}
	return &client{conn: c, patience: patience, opened: time.Now()}, nil
}

// close ends the keeper and makes whatever waits for it fail.
func (k *client) close() { _ = k.conn.Close() }

// gone reports whether the keeper has ended, without waiting.
func (k *client) gone() bool { return k.poll()&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0 }

// answers reports whether the keeper is alive and not late.
func (k *client) answers() bool {
	events := k.poll()
	if events&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0 {
		return false
	}
	if !k.late() {
		return true
	}
	if events&unix.POLLIN != 0 && k.mu.TryLock() { // otherwise a request in progress reads the answer
		defer k.mu.Unlock()
		_ = k.skip()
	}
	return !k.late()
}

// late reports whether the keeper is late with an answer.
func (k *client) late() bool {
	since := time.Duration(k.since.Load())
	return since != 0 && time.Since(k.opened)-since > soon
}

// poll returns the pending events of the connection.
func (k *client) poll() (events int16) {
	raw, err := k.conn.SyscallConn()
	if err != nil {
		return unix.POLLERR
	}
	fds := []unix.PollFd{{Events: unix.POLLIN | unix.POLLRDHUP}}
	var polled error
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		_, polled = unix.Poll(fds, 0)
		for errors.Is(polled, unix.EINTR) { // possible even without waiting, by the runtime's signals
			_, polled = unix.Poll(fds, 0)
		}
	})
	if err != nil || polled != nil {
		return unix.POLLERR
	}
	return fds[0].Revents
}

// ask sends a request and waits for its answer; the caller owns the descriptors. If an earlier request timed out, ask
// first waits for its answer.
func (k *client) ask(req message) (message, []int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.skip(); err != nil {
		return message{}, nil, err
	}
	if err := send(k.conn, req); err != nil {
		return message{}, nil, err
	}
	k.owed++
	k.since.Store(int64(time.Since(k.opened)))
	m, fds, err := k.hear()
	if err != nil {
		return message{}, nil, err
	}
	if m.op != answerDone {
		fdpass.CloseFDs(fds)
		return message{}, nil, fmt.Errorf("%w: %w", ErrKeeper, failureOf(m))
	}
	return m, fds, nil
}

// skip reads the answers to requests that timed out, and restarts the deadline for the next one. The caller holds mu.
func (k *client) skip() error {
	if err := k.conn.SetDeadline(time.Now().Add(k.patience)); err != nil {
		return fmt.Errorf("%w: %w", ErrKeeper, err)
	}
	for k.owed > 0 {
		_, fds, err := k.hear()
		fdpass.CloseFDs(fds)
		if err != nil && !errors.Is(err, fdpass.ErrNoDescriptor) && !errors.Is(err, fdpass.ErrTooLong) { // those have come
			return err
		}
	}
	return nil
}

// hear waits for the next answer. The caller holds mu.
func (k *client) hear() (message, []int, error) {
	m, fds, err := receive(k.conn)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		if k.owed--; k.owed == 0 {
			k.since.Store(0)
		}
	}
	return m, fds, err
}
