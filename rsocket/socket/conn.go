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
	"github.com/smcgw/smcgw/verbs"
)

const (
	defaultInline = 64 // as rdma-core has it
	defaultLinger = 10 * time.Second
)

// ConnConfig is what a connection is made with.
type ConnConfig struct {
	// RecvBuffer and SendBuffer are the rings in bytes; 1 MiB, of which an idle connection uses nothing. When the memory of
	// the stack's pool gets scarce new connections have smaller ones.
	RecvBuffer, SendBuffer int
	// RecvQueue is the number of messages the peer may have under way, 256; SendQueue the depth of the send queue, 256.
	RecvQueue, SendQueue int
	// Inline is the length up to which messages travel in the work request, 64; negative: none do.
	Inline int
	// IOMaps is the number of slots for the peer's [Conn.MapIO]; 0 refuses direct placement by this side.
	IOMaps int
	// KeepAlive is how often an idle peer is asked for a sign of life; 0: never.
	KeepAlive time.Duration
	// Linger is how long a closed connection goes on sending what was written before; 10 s. Negative: not at
	// all, Close resets the connection.
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

// endpoint is the configuration of the protocol below.
func (c ConnConfig) endpoint() rsocket.EndpointConfig {
	return rsocket.EndpointConfig{
		Dialect: rsocket.Stock, RingSize: c.RecvBuffer, SendBuffer: c.SendBuffer, Credits: c.RecvQueue, SendDepth: c.SendQueue,
		Inline: c.Inline, IOMaps: c.IOMaps,
	}
}

// within moves the sizes into the limits of a device (rsocket.c rs_create_ep).
func within(c rsocket.EndpointConfig, attr verbs.DeviceAttr) rsocket.EndpointConfig {
	c.Inline = min(c.Inline, attr.MaxInline)
	c.SendDepth = min(c.SendDepth, attr.MaxQPWR)
	c.Credits = min(c.Credits, attr.MaxQPWR-rsocket.ExtraRecvs)
	return c
}

// link is how the two ends of a connection know each other besides the queue pair.
type link interface {
	// disconnect tells the peer that the queue pair is down. It returns within closeTimeout.
	disconnect()
	// wait returns when the peer has confirmed that its queue pair is down too, false if it did not in closeTimeout.
	wait() bool
}

// Conn is a stream. It is a net.Conn: its methods may be called by any goroutine. Errors are *net.OpError around
// io.EOF (which comes as it is), net.ErrClosed, os.ErrDeadlineExceeded, ECONNRESET for a lost peer and EPIPE for a
// direction that was ended.
type Conn struct {
	node  vector.Node
	stack *Stack
	dom   *domain
	vec   *vector.Vector
	qp    verbs.QP
	size  verbs.QPCap       // of qp
	ep    *rsocket.Endpoint // owned by the holder of the vector's token
	cfg   ConnConfig
	link  link

	local, remote net.Addr

	rx readHalf
	tx writeHalf

	failure              atomic.Pointer[error] // why the connection was lost
	closed               atomic.Bool
	alive                *time.Timer // keepalive; nil: none
	beat                 atomic.Bool // a keepalive is due
	sleeps, sentMessages atomic.Uint64

	// Owned by the holder of the token.
	open      bool          // the peer's connection data is known
	early     []verbs.WC    // what completed before
	maps      []*IOMap      // not freed yet
	arrived   func()        // told of the first completion; may be nil
	settled   chan struct{} // closed when the queue pair may go
	isSettled bool          // settled is closed
	cut       bool          // nothing can be sent any more: the queue pair is down
	over      bool          // the endpoint is closed
	parted    bool          // DISCONNECT was asked for

	done chan struct{} // closed when nothing is left of the connection
}

// half is what a direction sleeps on.
type half struct {
	mu       sync.Mutex // one operation at a time; its holder waits in await alone, which deadline, end and loss end
	waiting  atomic.Bool
	wake     chan struct{}
	deadline Deadline
	shut     atomic.Bool // ended by this side
}

func (h *half) rouse() {
	if h.waiting.Load() {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
}

// expire is told when the deadline has passed.
func (h *half) expire() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

var _ net.Conn = (*Conn)(nil)

// newConn makes a connection with everything it needs but a peer.
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
	c.size = ec.QPCap()
	var err error
	if c.qp, err = dom.queuePair(c.vec, c.size); err != nil {
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

// discard undoes newConn: there is no peer, or none that stayed.
func (c *Conn) discard() error {
	c.closed.Store(true)
	var errs []error
	errs = append(errs, c.vec.Try(c.dropQP))
	errs = append(errs, c.ep.Release())
	c.leaveStack(false)
	return errors.Join(errs...)
}

// dropQP takes the queue pair out of use and closes the endpoint; the token is held, by RESET. After it the queue pair has no member: the domain
// gets it, to be used again or closed.
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

// joinPeer gives the connection its peer. The queue pair is not in RTS yet, or nothing has been polled since.
func (c *Conn) joinPeer(peer rsocket.ConnData) (err error) {
	if doErr := c.vec.Do(func() { err = c.joined(peer) }); doErr != nil {
		return doErr
	}
	return err
}

// begin posts what is due first; the queue pair is in RTS. From here on the stack's Close closes the connection.
func (c *Conn) begin(link link, local, remote net.Addr) error {
	c.link, c.local, c.remote = link, local, remote
	err := c.vec.Do(func() {
		_ = c.ep.Start() // a failure is in the stream
		c.service()
	})
	if err != nil {
		return err
	}
	if c.cfg.KeepAlive > 0 {
		c.alive = time.AfterFunc(time.Hour, c.keepAlive) // it must be known before it fires
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

// keepAlive asks for a sign of life and does so again.
func (c *Conn) keepAlive() {
	if c.closed.Load() {
		return
	}
	c.beat.Store(true)
	c.vec.Wants(&c.node)
	c.vec.Kick()
	c.alive.Reset(c.cfg.KeepAlive)
}

// LocalAddr is this end.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's end.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline ends blocked and future reads at t; zero: never.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.rx.half, t) }

// SetWriteDeadline ends blocked and future writes at t; zero: never.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.tx.half, t) }

func (c *Conn) setDeadline(h *half, t time.Time) error {
	if c.closed.Load() {
		return c.fault("set", net.ErrClosed)
	}
	h.deadline.Set(t, h.expire)
	return nil
}

// Err is why the connection was lost, nil while it was not. An orderly end is no loss.
func (c *Conn) Err() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// lose records why the connection was lost; the first reason stays. A loss after Close is not counted.
func (c *Conn) lose(err error) {
	if !errors.Is(err, syscall.ECONNRESET) {
		err = fmt.Errorf("%w: %w", syscall.ECONNRESET, err)
	}
	if c.failure.CompareAndSwap(nil, &err) && !c.closed.Load() {
		c.stack.counters.failed.Add(1)
	}
}

// fault dresses an error for the caller.
func (c *Conn) fault(op string, err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // data path; a wrapped one is no end of the stream
		return err
	}
	return &net.OpError{Op: op, Net: "rsocket", Source: c.local, Addr: c.remote, Err: err}
}

// expired is the error of a deadline.
var expired = os.ErrDeadlineExceeded

// await blocks an operation of a direction until something may have changed.
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
