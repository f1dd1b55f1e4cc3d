package netstack

import (
	"bytes"
	"errors"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/packet"
)

// stream moves the bytes of a wire leg through a gVisor endpoint. It needs no goroutine of its own.
type stream struct {
	ep tcpip.Endpoint

	rmu   sync.Mutex // guards everything below; one reader at a time
	sink  sliceWriter
	rdErr error // gVisor reports a reset only once

	wmu sync.Mutex // guards everything below; one writer at a time
	src bytes.Reader

	written atomic.Uint64 // bytes that Write has accepted
	led     uint64        // segments that the endpoint has received but the peer has not sent

	// ended is the error that ended the connection, if a writer was told about it: gVisor then only reports the end of
	// the stream to a reader.
	ended atomic.Pointer[error]
}

// sliceWriter is the destination of Endpoint.Read.
type sliceWriter struct{ b []byte }

func (w *sliceWriter) Write(p []byte) (int, error) {
	n := copy(w.b, p)
	w.b = w.b[n:]
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// Read reads what is available and returns at least one byte. Otherwise it returns io.EOF after the peer's FIN,
// ErrWouldBlock, or the error that ended the connection, which is permanent.
func (c *stream) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(p) == 0 || c.rdErr != nil {
		return 0, c.rdErr
	}
	c.sink.b = p
	res, terr := c.ep.Read(&c.sink, tcpip.ReadOptions{})
	c.sink.b = nil
	if res.Count > 0 {
		return res.Count, nil
	}
	err := mapError(terr)
	if _, closed := terr.(*tcpip.ErrClosedForReceive); closed || err == nil {
		err = c.endOfStream()
	}
	if !errors.Is(err, ErrWouldBlock) {
		c.rdErr = err
	}
	return 0, err
}

// endOfStream returns io.EOF after the peer's FIN, and otherwise the error that ended the connection: a reset must
// never look like the end of the bytes.
func (c *stream) endOfStream() error {
	if tcp.EndpointState(c.ep.State()) != tcp.StateError {
		return io.EOF
	}
	if p := c.ended.Load(); p != nil {
		return *p
	}
	return syscall.ECONNRESET
}

// Write copies as much of p as the send buffer has room for. It returns ErrWouldBlock if that is nothing.
func (c *stream) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.src.Reset(p)
	n, terr := c.ep.Write(&c.src, tcpip.WriteOptions{})
	c.src.Reset(nil)
	c.written.Add(uint64(n))
	if terr != nil {
		err := mapError(terr)
		if tcp.EndpointState(c.ep.State()) == tcp.StateError && !errors.Is(err, syscall.EPIPE) {
			c.ended.CompareAndSwap(nil, &err)
		}
		return int(n), err
	}
	if n == 0 { // the endpoint's state changed during the copy
		return 0, ErrWouldBlock
	}
	return int(n), nil
}

// CloseWrite sends a FIN behind what was written. Reading remains possible.
func (c *stream) CloseWrite() error {
	return mapError(c.ep.Shutdown(tcpip.ShutdownWrite))
}

// close ends both directions. What was written is still delivered, unless the peer acknowledges nothing for patience.
func (c *stream) close(patience time.Duration) error {
	defer c.ep.Close()
	return c.SetUserTimeout(patience)
}

// never is when a probe that was turned off is due. It cannot be turned off for good: if gVisor's timer expires while
// it is off, it does not start again when it is turned on.
const never = 10 * 365 * 24 * time.Hour

// SetKeepalive sets the keepalive immediately; see Conn.SetKeepalive.
func (c *stream) SetKeepalive(idle, interval time.Duration, count int) error {
	if idle <= 0 {
		if !c.ep.SocketOptions().GetKeepAlive() {
			return nil
		}
		idle, interval, count = never, never, math.MaxInt32
	}
	// The count first, because a probe may be due before gVisor has the rest.
	if terr := c.ep.SetSockOptInt(tcpip.KeepaliveCountOption, count); terr != nil {
		return mapError(terr)
	}
	i, v := tcpip.KeepaliveIdleOption(idle), tcpip.KeepaliveIntervalOption(interval)
	for _, o := range []tcpip.SettableSocketOption{&i, &v} {
		if terr := c.ep.SetSockOpt(o); terr != nil {
			return mapError(terr)
		}
	}
	c.ep.SocketOptions().SetKeepAlive(true)
	return nil
}

// SetUserTimeout ends the connection with ETIMEDOUT when written bytes remain unacknowledged for d (RFC 5482). Zero
// turns it off.
func (c *stream) SetUserTimeout(d time.Duration) error {
	o := tcpip.TCPUserTimeoutOption(d)
	return mapError(c.ep.SetSockOpt(&o))
}

// received returns how many segments the endpoint has received.
func (c *stream) received() uint64 {
	if st, ok := c.ep.Stats().(*tcp.Stats); ok {
		return st.SegmentsReceived.Value()
	}
	return 0
}

// over reports whether gVisor is done with the endpoint.
func (c *stream) over() bool {
	switch tcp.EndpointState(c.ep.State()) {
	case tcp.StateClose, tcp.StateError:
		return true
	default:
		return false
	}
}

// notifier calls a replaceable function on events of a queue.
type notifier struct {
	entry waiter.Entry
	fn    atomic.Pointer[func()]
}

func (n *notifier) call() {
	if fn := n.fn.Load(); fn != nil && *fn != nil {
		(*fn)()
	}
}

// Read reads what is available and returns at least one byte. Otherwise it returns io.EOF after the peer's FIN,
// ErrWouldBlock, or the error that ended the connection, which is permanent.
func (c *Conn) Read(p []byte) (int, error) {
	switch {
	case c.f.state() == legWhole:
		return c.whole.Read(p)
	case len(p) == 0:
		return 0, nil
	}
	return c.readMini(p)
}

// Write copies as much of p as the send buffer has room for. It returns ErrWouldBlock if that is nothing.
func (c *Conn) Write(p []byte) (int, error) {
	switch {
	case c.f.state() == legWhole:
		return c.whole.Write(p)
	case len(p) == 0:
		return 0, nil
	}
	return c.writeMini(p)
}

// CloseWrite sends a FIN behind what was written. Reading remains possible.
func (c *Conn) CloseWrite() error { return c.want((*stream).CloseWrite) }

// SetUserTimeout ends the connection with ETIMEDOUT when written bytes remain unacknowledged for d (RFC 5482). Zero
// turns it off.
func (c *Conn) SetUserTimeout(d time.Duration) error {
	return c.want(func(s *stream) error { return s.SetUserTimeout(d) })
}

// Over reports whether the connection has ended: in both directions in order, or by a reset. Bytes received before that
// can still be read.
func (c *Conn) Over() bool {
	l := c.f.state()
	return l >= legBroken || l.endpoint() && c.whole.over()
}

// Vitals returns signs of life: how many bytes Write has accepted, and how many segments have come from the peer. Both
// only increase. It is safe for concurrent use.
func (c *Conn) Vitals() (written, heard uint64) {
	written, heard = c.took.Load(), c.heard.Load()
	if l := c.f.state(); (l.endpoint() || !l.alive()) && c.whole != nil {
		written, heard = written+c.whole.written.Load(), heard+c.whole.received()-c.whole.led
	}
	return written, heard
}

// Acknowledged reports whether the peer's TCP has acknowledged the first written bytes, counted as by Vitals. written
// must be within the last 2 GiB. It is safe for concurrent use.
func (c *Conn) Acknowledged(written uint64) bool {
	first := c.f.isn + 1
	if c.f.server {
		first = c.f.serve.proof.ISS + 1
	}
	return !packet.After(first+uint32(written), c.f.una.Load())
}
