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
)

// stream moves the bytes of a wire leg through a gVisor endpoint. It needs no goroutine of its own.
type stream struct {
	ep tcpip.Endpoint
	wq *waiter.Queue

	rmu   sync.Mutex // guards everything below; one reader at a time
	sink  sliceWriter
	rdErr error // gVisor tells a reset once only

	wmu sync.Mutex // guards everything below; one writer at a time
	src bytes.Reader

	written atomic.Uint64 // bytes that Write took
	led     uint64        // segments that the endpoint has received and the peer has not sent

	// ended is the error that ended the connection, if a writer was told of it:
	// gVisor then tells a reader that the stream is over.
	ended atomic.Pointer[error]
}

// sliceWriter is where Endpoint.Read puts the bytes.
type sliceWriter struct{ b []byte }

func (w *sliceWriter) Write(p []byte) (int, error) {
	n := copy(w.b, p)
	w.b = w.b[n:]
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// Read reads what is there: at least one byte, io.EOF after the peer's FIN,
// ErrWouldBlock, or the error that ended the connection, which stays.
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

// endOfStream is io.EOF after the peer's FIN, and the error of a connection that
// ended otherwise: a reset must never look like the end of the bytes.
func (c *stream) endOfStream() error {
	if tcp.EndpointState(c.ep.State()) != tcp.StateError {
		return io.EOF
	}
	if p := c.ended.Load(); p != nil {
		return *p
	}
	return syscall.ECONNRESET
}

// Write queues as much of p as the send buffer takes; ErrWouldBlock if that is
// nothing. p is copied.
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
	if n == 0 { // the endpoint's state changed under the copy
		return 0, ErrWouldBlock
	}
	return int(n), nil
}

// CloseWrite sends a FIN behind what was written; reading goes on.
func (c *stream) CloseWrite() error {
	return mapError(c.ep.Shutdown(tcpip.ShutdownWrite))
}

// close ends both directions: what was written is still delivered, unless the peer acknowledges
// nothing for as long as patience.
func (c *stream) close(patience time.Duration) error {
	defer c.ep.Close()
	return c.SetUserTimeout(patience)
}

// never is when a probe that was turned off is due. Off for good it cannot be:
// gVisor's timer that expires while it is off does not start again when it is
// turned on.
const never = 10 * 365 * 24 * time.Hour

// SetKeepalive is Conn.SetKeepalive, at once.
func (c *stream) SetKeepalive(idle, interval time.Duration, count int) error {
	if idle <= 0 {
		if !c.ep.SocketOptions().GetKeepAlive() {
			return nil
		}
		idle, interval, count = never, never, math.MaxInt32
	}
	// The count first: a probe may be due before gVisor has the rest.
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

// SetUserTimeout ends the connection with ETIMEDOUT when written bytes stay
// unacknowledged for d (RFC 5482); zero turns it off.
func (c *stream) SetUserTimeout(d time.Duration) error {
	o := tcpip.TCPUserTimeoutOption(d)
	return mapError(c.ep.SetSockOpt(&o))
}

// received is how many segments the endpoint has received.
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
