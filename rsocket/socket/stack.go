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
	defaultWarm    = 8
	// cqDepth is the depth of a vector's completion queue. Software devices take memory for completions that are
	// there, not for those that could be.
	cqDepth = 1 << 20
	// closeTimeout bounds the words at the end of a connection.
	closeTimeout = 2 * time.Second
)

// StackConfig is what a stack is made with; the zero value is usable.
type StackConfig struct {
	// Pool bounds the memory of all connections.
	Pool rmb.PoolConfig
	// PollingTime is how long a blocked operation polls before it sleeps. 0: 10 µs. Negative: not
	// at all.
	PollingTime time.Duration
	// Warm is how many queue pairs of ended connections are kept per vector for the next ones. 0: 8. Negative: none.
	Warm int
	// NoCM leaves out the communication manager, for devices that another one has. A device without addresses has none. On
	// an adapter it is the kernel's; where the kernel has none, Dial and Listen say so.
	NoCM bool
	// CM configures that of package cm; Do and Vector are the stack's.
	CM cm.Config
}

// Stack is a device in use by this package. A device has one. Its methods may be called by any goroutine.
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
// Everything that has to do with queue pairs belongs to the vector of the device that they were created for. The
// goroutine that holds the vector's token drives it: it lets the device make progress, polls the shared completion
// queue, hands completions to the connections, posts what they want posted, and rings doorbells. There is no lock and
// no queue for the token. A writer copies into its ring, notes that its connection wants service and tries to get the
// token; if another goroutine holds it, that one posts the bytes, for it looks again after letting go. So what is
// written while a write is being posted travels with the next message. A reader copies out of its ring and notes what
// it consumed; the next holder of the token sends credits and grants, or the reader itself when they matter. Reading
// and writing share nothing but the token that neither waits for.
//
// # Waiting
//
// A goroutine that must wait polls for [StackConfig.PollingTime] and drives the vector meanwhile, one goroutine per
// vector: what arrives is for all. After that it sleeps. The last to leave arms the device's doorbells, and the
// vector's own goroutine, which sleeps in the runtime's poller, takes over when they ring. A connection that is alone
// on its vector and gets what it polls for leaves the doorbells as they are, and its acknowledgements for its answer to
// take along: it is back in a moment, and if not, the vector's goroutine looks after 200 µs. Where waits turn out long,
// polling is given up for a while; where they are short and no goroutine polls, it is tried for longer now and then.
//
// # What grows
//
// An idle connection has its rings, a target list and a queue pair with its receives, which have no memory; no goroutine,
// no completion queue. (Out of band it has a goroutine that reads the byte stream.) Queue pairs of ended connections are
// used again. All memory comes from one pool with a hard limit ([rmb.PoolConfig]), and what a peer may
// still write to is not used again before the peer has confirmed that it stopped, or the device makes it impossible.
//
// # Ends
//
// io.EOF means that the peer said SHUTDOWN or DISCONNECT. The end of the communication manager's connection, or of the
// byte stream, alone means that it was lost, ECONNRESET, and only after the completion queue has been drained: the last
// words may be in it.
type Stack struct {
	dev       verbs.Device
	cfg       StackConfig
	polling   time.Duration
	vectors   []*vector.Vector
	pool      *rmb.Pool
	manager   connManager    // nil if none
	noManager error          // why, where there ought to be one
	domain    *domain        // nil: NewStack has failed
	tasks     sync.WaitGroup // connections until nothing is left of them
	watching  sync.WaitGroup
	life      context.Context
	end       context.CancelFunc // by Close
	closing   func() error       // close, once

	counters stackCounters

	mu     sync.Mutex // guards everything below
	conns  map[*Conn]struct{}
	byQP   map[verbs.QP]*Conn // those and those that are being made
	owned  map[ender]struct{} // listeners and the like
	closed bool
}

// ender is something that ends with the stack.
type ender interface{ Close() error }

type stackCounters struct {
	dialed, accepted, refused, failed, cqErrors, lingered, qpsMade, qpsReused atomic.Uint64
}

// StackStats is a snapshot of a stack.
type StackStats struct {
	// Connections are open or being made or ended.
	Connections int
	// Warm is the number of queue pairs that wait for the next connections; QPsMade and QPsReused count those that
	// connections got.
	Warm               int
	QPsMade, QPsReused uint64
	// Dialed and Accepted count connections ever established, Refused requests that were refused, Failed connections
	// that were lost.
	Dialed, Accepted, Refused, Failed uint64
	// Lingered counts closed connections whose peer did not take the rest in time.
	Lingered uint64
	// CQErrors counts overruns of completion queues.
	CQErrors uint64
	// Pool is the memory.
	Pool rmb.PoolStats
}

// NewStack takes the device's vectors into use.
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

// pollingTime: with one processor, polling keeps the peer from what is polled for.
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
	st := StackStats{
		Connections: len(s.conns),
		Dialed:      c.dialed.Load(), Accepted: c.accepted.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(),
		Lingered: c.lingered.Load(), CQErrors: c.cqErrors.Load(), QPsMade: c.qpsMade.Load(), QPsReused: c.qpsReused.Load(), Pool: s.pool.Stats(),
	}
	if s.domain != nil {
		st.Warm = s.domain.warmCount()
	}
	return st
}

// Close ends all listeners and connections, what they still have to send included, as far as the peers take it within
// the connections' linger time. The device stays the caller's. Close is
// idempotent: each call returns when nothing is left, with the same error.
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

// ErrStackClosed is any use of a stack after its Close.
var ErrStackClosed = fmt.Errorf("stack: %w", verbs.ErrClosed)

// own registers something that ends with the stack; it fails after Close.
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

// within bounds a context by the life of the stack.
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
