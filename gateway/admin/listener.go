package admin

import (
	"errors"
	"net"
	"sync"
)

// limitedListener accepts a bounded number of connections at a time; more wait in the
// kernel's queue. Unlike x/net/netutil it gives access to the underlying connection, whose
// credentials are needed.
type limitedListener struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	once  sync.Once

	// privileged reports whether a connection may use the slots reserved for peers that may
	// change something; nil: none are reserved.
	privileged func(net.Conn) bool
	others     chan struct{} // slots for the others
}

// limitListener bounds l to n connections.
func limitListener(l net.Listener, n int) *limitedListener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, n), done: make(chan struct{})}
}

// Keep limits connections that are not privileged to others slots. More of them are closed at
// once, so that they cannot keep an operator from the socket.
func (l *limitedListener) Keep(others int, privileged func(net.Conn) bool) *limitedListener {
	l.privileged, l.others = privileged, make(chan struct{}, others)
	return l
}

// Accept waits for a slot and a connection.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.done:
			return nil, net.ErrClosed
		}
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.slots
			return nil, passing(err)
		}
		lc := &limitedConn{Conn: c, slots: []chan struct{}{l.slots}}
		if l.take(lc) {
			return lc, nil
		}
		_ = lc.Close()
	}
}

// passing makes a server continue after an error other than the end of its listener: for one
// connection, the kernel lacked memory or an epoll watch (ENOSPC of epoll_ctl(2)).
func passing(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	return temporary{err}
}

// temporary is an error after which net/http pauses and accepts again.
type temporary struct{ error }

// Temporary implements [net.Error].
func (temporary) Temporary() bool { return true }

// Timeout implements [net.Error].
func (temporary) Timeout() bool { return false }

// Unwrap returns the wrapped error.
func (t temporary) Unwrap() error { return t.error }

// take takes the second slot that an unprivileged connection needs.
func (l *limitedListener) take(c *limitedConn) bool {
	if l.privileged == nil || l.privileged(c.Conn) {
		return true
	}
	select {
	case l.others <- struct{}{}:
		c.slots = append(c.slots, l.others)
		return true
	default:
		return false
	}
}

// Close stops accepting, even if Accept is waiting for a slot.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// limitedConn frees its slots when it is closed.
type limitedConn struct {
	net.Conn
	slots []chan struct{}
	once  sync.Once
}

// Close closes the connection.
func (c *limitedConn) Close() error {
	defer c.once.Do(func() { free(c.slots) })
	return c.Conn.Close()
}
