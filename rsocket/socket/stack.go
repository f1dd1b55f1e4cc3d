package socket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/rsocket/internal/vector"

	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/rsocket/cm"
	"github.com/smcgw/smcgw/verbs"
)

const (
	defaultPolling = 10 * time.Microsecond
	// cqDepth is the depth of a vector's completion queue. Software devices allocate memory only for completions that
	// exist, not for the depth.
	cqDepth = 1 << 20
	// closeTimeout bounds each exchange at the end of a connection.
	closeTimeout = 2 * time.Second
)

// StackConfig configures a stack; the zero value is usable.
type StackConfig struct {
	// Pool bounds the memory of all connections.
	Pool rmb.PoolConfig
	// PollingTime is how long a blocked operation polls before it sleeps. 0: 10 µs. Negative: it does not poll.
	PollingTime time.Duration
	// CM configures the manager of package cm; the stack sets Do and Vector. On an adapter the kernel's manager is used
	// instead; if the kernel has none, Dial and Listen fail with that reason.
	CM cm.Config
}

// Stack is a device used by this package. A device must have only one. Any goroutine may call its methods.
//
//	 Conn.Write       Conn.Read     Conn.Write       Conn.Read       one goroutine each, any number of connections
//	     │ copies         ▲ copies      │                ▲
//	     ▼                │             ▼                │
//	┌─────────┐      ┌─────────┐   ┌─────────┐      ┌─────────┐
//	│send ring│      │receive  │   │send ring│      │receive  │     one producer, one consumer, atomic offsets: no lock
//	└────┬────┘      │ring     │   └────┬────┘      │ring     │
//	     │           └────▲────┘        │           └────▲────┘
//	     │ wants          │ produced    │                │
//	═════╪════════════════╪═════════════╪════════════════╪════ token
//	     ▼                │             ▼                │
//	┌──────────────────────────────────────────────────────────┐
//	│ vector: driver · one CQ · members                        │     driven by the holder of the token
//	└──────────────────────────────────────────────────────────┘
//
// # Vectors and their token
//
// Everything about queue pairs belongs to the device's vector for which they were created. The goroutine that holds the
// vector's token drives the vector: it lets the device make progress, polls the shared completion queue, passes
// completions to the connections, posts what they want posted, and rings doorbells. There is no lock and no queue for
// the token. A writer copies into its ring, marks its connection as wanting service and tries to take the token. If
// another goroutine holds it, that one posts the bytes, because it looks again after letting go. So bytes written while
// a write is being posted travel with the next message. A reader copies out of its ring and records what it consumed;
// the next token holder sends credits and grants, or the reader itself when they matter. Reading and writing share only
// the token, and neither waits for it.
//
// # Waiting
//
// A goroutine that must wait polls for [StackConfig.PollingTime] and drives the vector meanwhile, for all its
// connections; only one goroutine per vector polls. After that it sleeps. The last to leave arms the device's
// doorbells, and the vector's own goroutine, which sleeps in the runtime's poller, takes over when they ring. If a
// connection is alone on its vector and polling succeeds, it leaves the doorbells unarmed and its acknowledgements to
// be sent with its next answer: it will be back in a moment, and if not, the vector's goroutine looks after 200 µs. If
// waits turn out long, polling is suspended for a while; if they are short but no goroutine polls, longer polling is
// tried now and then.
//
// # What grows
//
// An idle connection has its rings, a target list and a queue pair with its receives, which have no memory, but no
// goroutine and no completion queue. All memory comes from one pool with a hard limit ([rmb.PoolConfig]). Memory that a
// peer may still write to is not reused before the device makes writing impossible.
//
// # Ends
//
// io.EOF means that the peer sent SHUTDOWN or DISCONNECT. If only the communication manager's connection has ended, the
// connection was lost: ECONNRESET. That is decided after the completion queue has been drained: the peer's last messages
// may be in it.
type Stack struct {
	dev       verbs.Device
	cfg       StackConfig
	polling   time.Duration
	vectors   []*vector.Vector
	pool      *rmb.Pool
	manager   connManager    // nil: none
	noManager error          // why there is no manager although there should be
	domain    *domain        // nil: NewStack failed
	tasks     sync.WaitGroup // one per connection until its resources are released
	watching  sync.WaitGroup
	life      context.Context
	end       context.CancelFunc // called by Close
	closing   func() error       // close, once

	counters stackCounters

	mu     sync.Mutex // guards everything below
	conns  map[*Conn]struct{}
	byQP   map[verbs.QP]*Conn // conns and connections being made
	owned  map[ender]struct{} // listeners and the like
	closed bool
}

// ender is closed with the stack.
type ender interface{ Close() error }

type stackCounters struct {
	dialed, accepted, refused, failed, cqErrors, lingered atomic.Uint64
}

// StackStats is a snapshot of a stack.
type StackStats struct {
	// Connections is the number of established connections, including those that are being closed.
	Connections int
	// Dialed and Accepted count connections ever established, Refused refused requests, Failed lost connections.
	Dialed, Accepted, Refused, Failed uint64
	// Lingered counts closed connections whose peer did not take the remaining data in time.
	Lingered uint64
	// CQErrors counts overruns of completion queues.
	CQErrors uint64
	// Pool describes the memory.
	Pool rmb.PoolStats
}

// NewStack makes a stack on the device and drives all its vectors.
func NewStack(dev verbs.Device, cfg StackConfig) (*Stack, error) {
	if err := rsocket.CheckDevice(dev.Attr()); err != nil {
		return nil, fmt.Errorf("open stack: %w", err)
	}
	pool, err := rmb.NewPool(cfg.Pool)
	if err != nil {
		return nil, err
	}
	s := &Stack{
		dev: dev, cfg: cfg, pool: pool, polling: pollingTime(cfg),
		conns: map[*Conn]struct{}{}, byQP: map[verbs.QP]*Conn{}, owned: map[ender]struct{}{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.closing = sync.OnceValue(s.close)
	if err := s.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open stack: %w", err), s.Close())
	}
	return s, nil
}

// pollingTime returns how long to poll. With one processor it is 0: polling would keep the peer from running.
func pollingTime(cfg StackConfig) time.Duration {
	switch {
	case runtime.GOMAXPROCS(0) == 1:
		return 0
	case cfg.PollingTime != 0:
		return max(0, cfg.PollingTime)
	default:
		return defaultPolling
	}
}

func (s *Stack) open() error {
	vc := vector.Config{Dev: s.dev, Depth: cqDepth, Polling: s.polling, CQErrors: &s.counters.cqErrors}
	for i := range max(1, s.dev.Attr().Vectors) {
		v, err := vector.New(vc, i)
		if err != nil {
			return fmt.Errorf("vector %d: %w", i, err)
		}
		s.vectors = append(s.vectors, v)
		go v.Run()
	}
	var err error
	if s.domain, err = s.newDomain(); err != nil {
		return err
	}
	s.watching.Go(s.watch)
	return s.openManager()
}

// Stats returns a snapshot.
func (s *Stack) Stats() StackStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.counters
	return StackStats{
		Connections: len(s.conns),
		Dialed:      c.dialed.Load(), Accepted: c.accepted.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(),
		Lingered: c.lingered.Load(), CQErrors: c.cqErrors.Load(), Pool: s.pool.Stats(),
	}
}

// Close closes all listeners and connections. What connections still have to send is sent as far as the peers take it
// within the linger time. The caller keeps the device. Close is idempotent: each call returns when everything is
// released, with the same error.
func (s *Stack) Close() error {
	return s.closing()
}

func (s *Stack) close() error {
	s.mu.Lock()
	s.closed = true
	all := slices.Collect(maps.Keys(s.owned))
	for c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	s.end()
	var errs []error
	for _, e := range all {
		errs = append(errs, e.Close())
	}
	s.tasks.Wait()
	s.watching.Wait()
	if s.manager != nil {
		errs = append(errs, s.manager.Close())
	}
	if s.domain != nil {
		errs = append(errs, s.domain.close())
	}
	for _, v := range s.vectors {
		v.Stop()
	}
	return errors.Join(errs...)
}

// ErrStackClosed is the use of a stack after its Close.
var ErrStackClosed = fmt.Errorf("stack: %w", verbs.ErrClosed)

// own registers something to be closed with the stack; it fails after Close.
func (s *Stack) own(e ender) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrStackClosed
	}
	s.owned[e] = struct{}{}
	return nil
}

func (s *Stack) disown(e ender) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.owned, e)
}

// within returns a context that is cancelled when the stack is closed.
func (s *Stack) within(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(ErrStackClosed) })
	return ctx, func() { stop(); cancel(context.Canceled) }
}

// vector chooses the vector with the fewest members.
func (s *Stack) vector() *vector.Vector {
	best := s.vectors[0]
	for _, v := range s.vectors[1:] {
		if v.Load() < best.Load() {
			best = v
		}
	}
	return best
}
