package admin

import (
	"errors"
	"net"
	"sync"
)

// limitedListener accepts a bounded number of connections at a time; more wait
// in the kernel's queue. Unlike x/net/netutil it lets the connection below be
// seen, whose credentials are wanted.
type limitedListener struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	once  sync.Once

	// privileged tells whether a connection may have one of the slots that are
	// kept for peers with the right to change something; nil: none is kept.
	privileged func(net.Conn) bool
	others     chan struct{} // slots of the others
}

// limitListener bounds l to n connections.
func limitListener(l net.Listener, n int) *limitedListener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, n), done: make(chan struct{})}
}

// Keep leaves only some of the slots to connections that are not privileged. More
// of them are closed at once: they must not keep an operator from the socket.
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

// passing has a server go on after an error that is not the end of its listener: the kernel
// lacks memory, or a watch (ENOSPC of epoll_ctl(2)), for one connection.
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

// Unwrap returns the error itself.
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

// Close stops accepting, also where Accept waits for a slot.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// limitedConn gives its slots back when it is closed.
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
