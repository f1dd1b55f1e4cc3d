package socket

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/smcgw/smcgw/rsocket/internal/vector"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
)

const (
	defaultInline = 64 // as in rdma-core
	defaultLinger = 10 * time.Second
)

// ConnConfig configures a connection.
type ConnConfig struct {
	// RecvBuffer and SendBuffer are the ring sizes in bytes; 1 MiB, of which an idle connection touches nothing. When the
	// stack's pool runs low, new connections get smaller rings.
	RecvBuffer, SendBuffer int
	// RecvQueue is the number of messages that the peer may have in flight, 256; SendQueue is the depth of the send queue,
	// 256.
	RecvQueue, SendQueue int
	// Inline is the length up to which messages travel in the work request, 64; negative: none.
	Inline int
	// IOMaps is the number of slots for the peer's [Conn.MapIO]; 0 refuses direct placement by this side.
	IOMaps int
	// KeepAlive is the interval of keepalives; 0: none.
	KeepAlive time.Duration
	// Linger is how long a closed connection goes on sending what was written before; 10 s. Negative: no lingering, Close
	// resets the connection.
	Linger time.Duration
}

func (c ConnConfig) withDefaults(buffer int) ConnConfig {
	c.RecvBuffer, c.SendBuffer = cmp.Or(c.RecvBuffer, buffer), cmp.Or(c.SendBuffer, buffer)
	c.RecvQueue = cmp.Or(c.RecvQueue, rsocket.DefaultCredits)
	c.SendQueue = cmp.Or(c.SendQueue, rsocket.DefaultSendDepth)
	c.Inline = max(0, cmp.Or(c.Inline, defaultInline))
	c.IOMaps = max(0, c.IOMaps)
	c.Linger = cmp.Or(c.Linger, defaultLinger)
	return c
}

// endpoint returns the endpoint configuration.
func (c ConnConfig) endpoint() rsocket.EndpointConfig {
	return rsocket.EndpointConfig{
		Dialect: rsocket.Stock, RingSize: c.RecvBuffer, SendBuffer: c.SendBuffer, Credits: c.RecvQueue, SendDepth: c.SendQueue,
		Inline: c.Inline, IOMaps: c.IOMaps,
	}
}

// within limits the sizes to what the device supports (rsocket.c rs_create_ep).
func within(c rsocket.EndpointConfig, attr verbs.DeviceAttr) rsocket.EndpointConfig {
	c.Inline = min(c.Inline, attr.MaxInline)
	c.SendDepth = min(c.SendDepth, attr.MaxQPWR)
	c.Credits = min(c.Credits, attr.MaxQPWR-rsocket.ExtraRecvs)
	return c
}

// Conn is a stream. It implements net.Conn; any goroutine may call its methods. Errors are *net.OpError around
// net.ErrClosed, os.ErrDeadlineExceeded, ECONNRESET for a lost peer and EPIPE for a direction that was ended. io.EOF is
// returned as it is.
type Conn struct {
	node  vector.Node
	stack *Stack
	dom   *domain
	vec   *vector.Vector
	qp    verbs.QP
	ep    *rsocket.Endpoint // owned by the holder of the vector's token
	cfg   ConnConfig
	cm    cm.Conn // of the communication manager

	local, remote net.Addr

	rx readHalf
	tx writeHalf

	failure              atomic.Pointer[error] // why the connection was lost; nil while it was not
	closed               atomic.Bool
	alive                *time.Timer // keepalive; nil: none
	beat                 atomic.Bool // set when a keepalive is due
	sleeps, sentMessages atomic.Uint64

	// Owned by the holder of the token.
	open      bool          // the peer's connection data is known
	early     []verbs.WC    // completions before open
	maps      []*IOMap      // mappings not freed yet
	arrived   func()        // called at the first completion; may be nil
	settled   chan struct{} // closed when the queue pair may be closed
	isSettled bool          // whether settled is closed
	cut       bool          // the queue pair is down: nothing more is sent
	over      bool          // the endpoint is closed
	parted    bool          // DISCONNECT was requested

	done chan struct{} // closed when all resources are released
}

// half is what the operations of one direction wait on.
type half struct {
	mu       sync.Mutex // serializes operations; the holder blocks only in await, which deadline, close and loss end
	waiting  atomic.Bool
	wake     chan struct{}
	deadline Deadline
	shut     atomic.Bool // ended by our side
}

func (h *half) rouse() {
	if h.waiting.Load() {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
}

// expire is called when the deadline has passed.
func (h *half) expire() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

var _ net.Conn = (*Conn)(nil)

// newConn makes a connection that only lacks a peer.
func (s *Stack) newConn(cfg ConnConfig) (*Conn, error) {
	cfg = cfg.withDefaults(s.pool.Stats().RingSize())
	if s.life.Err() != nil {
		return nil, ErrStackClosed
	}
	dom := s.domain
	c := &Conn{
		stack: s, dom: dom, vec: s.vector(), cfg: cfg,
		settled: make(chan struct{}), done: make(chan struct{}),
	}
	c.node.Member = (*connMember)(c)
	c.rx.wake, c.tx.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	ec := within(cfg.endpoint(), s.dev.Attr())
	var err error
	if c.qp, err = dom.queuePair(c.vec, ec.QPCap()); err != nil {
		return nil, err
	}
	if c.ep, err = rsocket.NewEndpoint(c.qp, dom.arena, ec); err != nil {
		return nil, errors.Join(err, c.qp.Close())
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.tasks.Add(1) // until leaveStack
		s.byQP[c.qp] = c
	}
	s.mu.Unlock()
	if closed {
		return nil, errors.Join(ErrStackClosed, c.qp.Close(), c.ep.Close(), c.ep.Release())
	}
	if err := c.vec.Do(func() { c.vec.Add(c.qp.Num(), (*connMember)(c)) }); err != nil {
		return nil, errors.Join(err, c.discard())
	}
	return c, nil
}

// discard undoes newConn after a failure to connect.
func (c *Conn) discard() error {
	c.closed.Store(true)
	var errs []error
	errs = append(errs, c.vec.Try(c.dropQP))
	errs = append(errs, c.ep.Release())
	c.leaveStack()
	return errors.Join(errs...)
}

// dropQP takes the queue pair out of use, to RESET, and closes the endpoint. The caller holds the token. Afterwards the
// queue pair has no member.
func (c *Conn) dropQP() error {
	c.over = true
	failed := c.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState)
	c.vec.Drain()
	c.ep.Retire()
	c.early = nil
	err := errors.Join(failed, c.qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	c.vec.Remove(c.qp.Num())
	return err
}

// joinPeer sets the peer of the connection. The queue pair must not be in RTS yet, or nothing polled since.
func (c *Conn) joinPeer(peer rsocket.ConnData) (err error) {
	if doErr := c.vec.Do(func() { err = c.joined(peer) }); doErr != nil {
		return doErr
	}
	return err
}

// begin starts the connection, whose queue pair is in RTS, and posts what is due. From here on the stack's Close closes
// the connection.
func (c *Conn) begin(made cm.Conn) error {
	c.cm = made
	c.local, c.remote = net.TCPAddrFromAddrPort(made.LocalAddr()), net.TCPAddrFromAddrPort(made.RemoteAddr())
	err := c.vec.Do(func() {
		_ = c.ep.Start() // a failure is in the stream
		c.service()
	})
	if err != nil {
		return err
	}
	if c.cfg.KeepAlive > 0 {
		c.alive = time.AfterFunc(time.Hour, c.keepAlive) // c.alive must be set before it fires
		c.alive.Reset(c.cfg.KeepAlive)
	}
	c.stack.mu.Lock()
	defer c.stack.mu.Unlock()
	if c.stack.closed {
		c.closed.Store(true) // no keepalive
		return ErrStackClosed
	}
	c.stack.conns[c] = struct{}{}
	return nil
}

// keepAlive requests a keepalive and restarts the timer.
func (c *Conn) keepAlive() {
	if c.closed.Load() {
		return
	}
	c.beat.Store(true)
	c.vec.Wants(&c.node)
	c.vec.Kick()
	c.alive.Reset(c.cfg.KeepAlive)
}

// LocalAddr returns this end's address.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets the time at which blocked and future reads fail; zero: never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.rx.half, t) }

// SetWriteDeadline sets the time at which blocked and future writes fail; zero: never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.tx.half, t) }

func (c *Conn) setDeadline(h *half, t time.Time) error {
	if c.closed.Load() {
		return c.fault("set", net.ErrClosed)
	}
	h.deadline.Set(t, h.expire)
	return nil
}

// Err returns why the connection was lost, or nil. An orderly end is not a loss.
func (c *Conn) Err() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// lose records why the connection was lost; the first reason is kept. A loss after Close is not counted.
func (c *Conn) lose(err error) {
	if !errors.Is(err, syscall.ECONNRESET) {
		err = fmt.Errorf("%w: %w", syscall.ECONNRESET, err)
	}
	if c.failure.CompareAndSwap(nil, &err) && !c.closed.Load() {
		c.stack.counters.failed.Add(1)
	}
}

// fault wraps an error for the caller.
func (c *Conn) fault(op string, err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // data path; a wrapped one is no end of the stream
		return err
	}
	return &net.OpError{Op: op, Net: "rsocket", Source: c.local, Addr: c.remote, Err: err}
}

// expired is the error of a passed deadline.
var expired = os.ErrDeadlineExceeded

// await blocks an operation of a direction until its state may have changed.
func (c *Conn) await(h *half, w vector.Waiter) {
	if w.Ready() || c.vec.Spin(w) {
		return
	}
	c.sleeps.Add(1)
	start := time.Now()
	h.waiting.Store(true)
	if !w.Ready() {
		<-h.wake
	}
	h.waiting.Store(false)
	c.vec.Waited(time.Since(start))
}
