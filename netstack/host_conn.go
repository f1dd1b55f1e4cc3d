package netstack

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// HostConn is a TCP connection of a Host: a net.Conn with half-close whose
// errors are those of the net package.
type HostConn struct {
	stream
	local, remote netip.AddrPort
	rd, wr        deadline
	closed        atomic.Bool
}

var _ net.Conn = (*HostConn)(nil)

func newHostConn(ep tcpip.Endpoint, wq *waiter.Queue) (*HostConn, error) {
	l, lerr := ep.GetLocalAddress()
	r, rerr := ep.GetRemoteAddress()
	if lerr != nil || rerr != nil {
		ep.Abort()
		return nil, net.ErrClosed
	}
	c := &HostConn{stream: stream{ep: ep, wq: wq}, local: addrPort(l), remote: addrPort(r)}
	c.rd.init()
	c.wr.init()
	return c, nil
}

// Read implements net.Conn.
func (c *HostConn) Read(p []byte) (int, error) {
	stop := c.rd.wait()
	n, err := 0, errInterrupted
	if !isClosed(stop) {
		n, err = c.blocking(waiter.ReadableEvents, stop, func() (int, error) { return c.stream.Read(p) })
	}
	return n, c.opError("read", err)
}

// Write implements net.Conn.
func (c *HostConn) Write(p []byte) (int, error) {
	stop := c.wr.wait()
	n, err := 0, errInterrupted
	if !isClosed(stop) {
		n, err = c.writeAll(p, stop, c.stream.Write)
	}
	return n, c.opError("write", err)
}

func (c *HostConn) opError(op string, err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF) && !c.closed.Load():
		return err
	case c.closed.Load():
		err = net.ErrClosed
	case errors.Is(err, errInterrupted):
		err = os.ErrDeadlineExceeded
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// Close implements net.Conn: what was written is still delivered.
func (c *HostConn) Close() error {
	if c.closed.Swap(true) {
		return &net.OpError{Op: "close", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: net.ErrClosed}
	}
	c.rd.interrupt()
	c.wr.interrupt()
	c.ep.Close()
	return nil
}

// Abort resets the connection.
func (c *HostConn) Abort() {
	if c.closed.Swap(true) {
		return
	}
	c.rd.interrupt()
	c.wr.interrupt()
	c.ep.Abort()
}

// LocalAddr implements net.Conn.
func (c *HostConn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.local) }

// RemoteAddr implements net.Conn.
func (c *HostConn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

// SetDeadline implements net.Conn.
func (c *HostConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *HostConn) SetReadDeadline(t time.Time) error { return c.rd.set(t) }

// SetWriteDeadline implements net.Conn.
func (c *HostConn) SetWriteDeadline(t time.Time) error { return c.wr.set(t) }

// deadline is a channel that closes at a time that can be moved, after the
// example of net.Pipe.
type deadline struct {
	mu    sync.Mutex // guards everything below
	timer *time.Timer
	stop  chan struct{} // never nil
	ended bool
}

func (d *deadline) init() { d.stop = make(chan struct{}) }

func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop
}

func (d *deadline) set(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return net.ErrClosed
	}
	if d.timer != nil && !d.timer.Stop() {
		<-d.stop // the timer has fired: wait until it has closed the channel
	}
	d.timer = nil
	if isClosed(d.stop) {
		d.stop = make(chan struct{})
	}
	if t.IsZero() {
		return nil
	}
	if left := time.Until(t); left > 0 {
		stop := d.stop
		d.timer = time.AfterFunc(left, func() { close(stop) })
		return nil
	}
	close(d.stop)
	return nil
}

// interrupt ends every wait, for good.
func (d *deadline) interrupt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.timer != nil && !d.timer.Stop() {
		<-d.stop
	}
	if !isClosed(d.stop) {
		close(d.stop)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// HostListener is a listener of a Host; it implements net.Listener.
type HostListener struct {
	h    *Host
	addr netip.AddrPort
	ep   tcpip.Endpoint // nil: ListenAll
	wq   *waiter.Queue
	quit chan struct{}

	queue chan *HostConn // ListenAll
	busy  sync.WaitGroup // its handshakes

	mu     sync.Mutex // guards closed
	closed bool
}

var _ net.Listener = (*HostListener)(nil)

func newHostListener(h *Host, addr netip.AddrPort) *HostListener {
	return &HostListener{h: h, addr: addr, wq: &waiter.Queue{}, quit: make(chan struct{})}
}

// enter counts a handshake; false: the listener is closed.
func (l *HostListener) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.busy.Add(1)
	return true
}

// Accept implements net.Listener; the connection is a *HostConn.
func (l *HostListener) Accept() (net.Conn, error) {
	c, err := l.AcceptHost()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptHost is Accept with the type.
func (l *HostListener) AcceptHost() (*HostConn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: err}
	}
	return c, nil
}

func (l *HostListener) accept() (*HostConn, error) {
	if l.ep == nil {
		select {
		case c := <-l.queue:
			return c, nil
		case <-l.quit:
			return nil, net.ErrClosed
		}
	}
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	l.wq.EventRegister(&entry)
	defer l.wq.EventUnregister(&entry)
	for {
		if isClosed(l.quit) {
			return nil, net.ErrClosed
		}
		ep, wq, terr := l.ep.Accept(nil)
		if terr == nil {
			return newHostConn(ep, wq)
		}
		if _, again := terr.(*tcpip.ErrWouldBlock); !again {
			return nil, mapError(terr)
		}
		select {
		case <-ready:
		case <-l.quit:
		}
	}
}

// Addr implements net.Listener.
func (l *HostListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.addr) }

// Close implements net.Listener.
func (l *HostListener) Close() error {
	l.mu.Lock()
	done := l.closed
	l.closed = true
	l.mu.Unlock()
	if done {
		return nil
	}
	close(l.quit)
	if l.ep != nil {
		l.ep.Close()
		return nil
	}
	l.h.mu.Lock()
	l.h.all = nil
	l.h.mu.Unlock()
	l.busy.Wait()
	for {
		select {
		case c := <-l.queue:
			c.Abort()
		default:
			return nil
		}
	}
}
