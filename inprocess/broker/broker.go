package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/inprocess"
)

// Broker serves processes that have loaded the library.
type Broker struct {
	config Config
	log    *slog.Logger
	left   chan struct{} // signals lookAfter that leftovers has a new entry
	lines  *rate.Limiter // limits warn
	missed atomic.Uint64 // lines that warn left out

	mu         sync.Mutex // guards the fields below, and orders what is sent
	core       *core
	policy     Policy
	thresholds Thresholds
	clients    map[*client]struct{}
	slabs      map[slabKey]int // connected clients of each slab
	sentBack   map[slabKey]sentBack
	efforts    map[uint32]*effort // by UID
	leftovers  []*leftover
	timer      *time.Timer
	closed     bool
	beyond     Beyond // nil: look for the other end on this host only
	owedFiles  int    // descriptors of the answers that clients are owed

	maxOwedFiles int
}

// New returns a broker that does not serve yet.
func New(c Config) *Broker {
	limits := c.Limits.withDefaults()
	limits.Conns = min(limits.Conns, descriptors()/2/descriptorsOfEach)
	b := &Broker{
		config: c, log: c.Log, core: newCore(limits, uint64(rand.Uint32())<<numbers), policy: c.Policy, thresholds: c.Thresholds.withDefaults(),
		clients: map[*client]struct{}{}, slabs: map[slabKey]int{}, efforts: map[uint32]*effort{}, left: make(chan struct{}, 1),
		lines: rate.NewLimiter(rate.Every(lineEvery), linesAtOnce), maxOwedFiles: descriptors() / owedFilesShare,
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	return b
}

// The rate at which warn logs problems with programs, which any user can cause at will.
const (
	lineEvery   = 10 * time.Second
	linesAtOnce = 10
)

// warn logs a rate-limited warning. A line over the limit is counted and reported with the next one.
func (b *Broker) warn(msg string, args ...any) {
	if !b.lines.Allow() {
		b.missed.Add(1)
		return
	}
	if n := b.missed.Swap(0); n > 0 {
		args = append(args, "lines_left_out", n)
	}
	b.log.Warn(msg, args...) //nolint:sloglint // callers pass constants
}

// descriptorsOfEach is how many descriptors the broker keeps for each connection, to see what its memory holds and
// whether any process still has it.
const descriptorsOfEach = 2

// owedFilesShare is the part of all descriptors that answers to clients may take which do not take them yet.
const owedFilesShare = 8

// descriptors returns this process's limit on open descriptors.
func descriptors() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0
	}
	return int(min(r.Cur, 1<<20))
}

// Listen creates the broker's socket, replacing a stale one that is no longer served.
func Listen(path string, mode fs.FileMode) (*net.UnixListener, error) {
	at := &net.UnixAddr{Name: path, Net: "unixpacket"}
	l, err := net.ListenUnix("unixpacket", at)
	if errors.Is(err, unix.EADDRINUSE) {
		if errServed := served(at); errServed != nil {
			return nil, fmt.Errorf("listen: %w", errors.Join(err, errServed))
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		l, err = net.ListenUnix("unixpacket", at)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), l.Close())
	}
	return l, nil
}

// servedWithin is how long a live broker may take to hang up on a client that has hung up.
const servedWithin = 3 * time.Second

// served returns nil if the socket at this address is stale: no process listens, or the one that does never hangs up.
// The latter is a killed process that keeps its descriptors while one of its threads is in a system call that does not
// end. Otherwise it returns why the socket must be left alone.
func served(at *net.UnixAddr) error {
	if fi, err := os.Lstat(at.Name); err == nil && fi.Mode().Type() != fs.ModeSocket {
		return errors.New("not a socket")
	}
	c, err := net.DialUnix("unixpacket", nil, at)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := errors.Join(c.CloseWrite(), c.SetReadDeadline(time.Now().Add(servedWithin))); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return errors.New("served")
}

// acceptPause is the delay after a failed accept, as for want of descriptors or memory.
const acceptPause = 50 * time.Millisecond

// Serve serves clients until ctx ends, which is not an error. It closes the listener and returns once the last client
// has been let go, at most 2 s later. Promoted connections go on. Call Serve only once.
func (b *Broker) Serve(ctx context.Context, l *net.UnixListener) error {
	var clients sync.WaitGroup
	defer b.stop()
	defer b.letGo(&clients)
	ctx, cancel := context.WithCancel(ctx)
	var looks sync.WaitGroup
	defer looks.Wait()
	defer cancel()
	looks.Go(func() { b.lookAfter(ctx) })
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if conn != nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept: %w", err)
		case err != nil:
			b.warn("accept in-process client", "error", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		clients.Go(func() { b.serve(ctx, conn) })
	}
}

// letGoWithin is how long an ending broker waits for its clients.
const letGoWithin = 2 * time.Second

// letGo waits until the clients have been let go. A system call on a client's socket may never return, as when its
// program is in a page fault on a file system that does not answer; such a client is left to the end of the process.
func (b *Broker) letGo(clients *sync.WaitGroup) {
	gone := make(chan struct{})
	go func() { clients.Wait(); close(gone) }()
	select {
	case <-gone:
	case <-time.After(letGoWithin):
		b.log.Warn("in-process clients not let go", "error", "the kernel does not answer about their sockets")
	}
}

// stop stops the timer and drops the leftovers.
func (b *Broker) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.drop()
}

// drop closes and forgets all leftovers. The caller holds the lock.
func (b *Broker) drop() {
	for _, l := range b.leftovers {
		l.close()
	}
	b.leftovers = nil
}

// do runs f on the core, sends the denials that it returns, and settles. It takes the lock.
func (b *Broker) do(f func(*core) []denial) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tell(f(b.core))
	b.settle()
}

// settle handles the connections that the core has released and the ends that have ended, and sets the timer. The
// caller holds the lock.
func (b *Broker) settle() {
	for _, p := range b.core.halved {
		if p.mem != nil {
			b.keep(leftoverOfEnd(b, p), firstLookAtEnd)
		}
	}
	b.core.halved = b.core.halved[:0]
	for _, p := range b.core.released {
		if p.mem == nil { // nothing was handed out
			b.core.holds(p, [2]bool{})
			continue
		}
		b.keep(leftoverOf(p), firstLook)
		p.mem = nil
	}
	if b.closed {
		b.drop()
	}
	b.core.released = b.core.released[:0]
	b.tellBeyond()
	for _, e := range b.core.ended {
		b.told(ToldEnded, e, e.why)
	}
	clear(b.core.ended)
	b.core.ended = b.core.ended[:0]
	at, ok := b.core.deadline()
	switch {
	case !ok || b.closed:
	case b.timer == nil:
		b.timer = time.AfterFunc(time.Until(at), b.expire)
	default:
		b.timer.Reset(time.Until(at))
	}
}

func (b *Broker) expire() {
	b.do(func(c *core) []denial { return c.expire(time.Now()) })
}

// tell sends denials. A client that is owed too much would wait for the answer forever, so its conversation ends; it
// asks again in the next one. The caller holds the lock.
func (b *Broker) tell(no []denial) {
	for _, d := range no {
		if c := d.of.of.client; !b.queue(c, inprocess.Record{What: inprocess.Deny, Tag: d.of.tag, Why: d.why}) {
			c.hangUp()
		}
		if d.of.hears(d.why) {
			b.told(ToldDenied, d.of, d.why)
		}
	}
}

// told calls Config.Tell, if it is set. The caller holds the lock.
func (b *Broker) told(kind Told, e *end, why inprocess.Why) {
	if b.config.Tell != nil {
		b.config.Tell(kind, e.info(), why)
	}
}

// SetPolicy replaces the thresholds, and the policy for questions from now on. A nil policy selects everything.
func (b *Broker) SetPolicy(p Policy, t Thresholds) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.policy, b.thresholds = p, t.withDefaults()
	b.publish(true)
}

// SetOff sets the switch. While it is off nothing is promoted, and the libraries take promoted connections back to the
// kernel.
func (b *Broker) SetOff(off bool) {
	b.do(func(c *core) []denial {
		if c.off == off {
			return nil
		}
		no := c.setOff(off)
		b.publish(true)
		return no
	})
}

// publish updates every news page. If again, refused ends may ask again. The caller holds the lock.
func (b *Broker) publish(again bool) {
	for c := range b.clients {
		if c.news != nil {
			c.news.set(b.core.off, b.sentBack[c.slab.key], b.thresholds, again)
		}
	}
}

// Clients returns the number of connected clients.
func (b *Broker) Clients() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.clients)
}
