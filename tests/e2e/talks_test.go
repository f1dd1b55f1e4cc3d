package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// talkPatience bounds every connection of talks: one that takes longer hangs.
const talkPatience = 120 * time.Second

// talks is a number of connections between two hosts. Both ends of each send and receive a few megabytes a second
// until told to stop. Every byte is compared with what it must be, and counted.
type talks struct {
	t         *testing.T
	from, to  *testnet.Host
	port      uint16
	lns       []net.Listener
	quiet     atomic.Bool  // neither side sends
	givenBack atomic.Int64 // connections that a server accepted in vain
	accepting sync.WaitGroup
	mu        sync.Mutex // guards everything below
	rng       *rand.Rand
	all       []*talk
	accepted  map[netip.AddrPort]chan *net.TCPConn
}

// talk is one connection. Its methods may be called from any goroutine.
type talk struct {
	x     *talks
	to    netip.AddrPort
	local atomic.Pointer[netip.AddrPort] // the client's address, once connected
	limit int64                          // bytes each way, or 0: until told to stop
	stop  chan struct{}
	once  sync.Once
	up    oneWay
	down  oneWay
	done  chan struct{}
	err   error // after done: nil if everything arrived both ways and both ends ended
}

// oneWay is one direction.
type oneWay struct {
	salt      int
	sizes     uint64
	sent, got atomic.Int64
}

func newTalks(t *testing.T, from, to *testnet.Host, port uint16, rng *rand.Rand) *talks {
	t.Helper()
	x := &talks{t: t, from: from, to: to, port: port, rng: rng, accepted: map[netip.AddrPort]chan *net.TCPConn{}}
	for _, addr := range []netip.AddrPort{to.AddrPort4(port), to.AddrPort6(port)} {
		ln, err := to.Listen("tcp", addr.String())
		require.NoError(t, err)
		x.lns = append(x.lns, ln)
		x.accepting.Go(func() { x.accept(ln) })
	}
	t.Cleanup(x.close)
	return x
}

// close ends what is left, which is nothing if the test went well.
func (x *talks) close() {
	for _, ln := range x.lns {
		_ = ln.Close()
	}
	x.accepting.Wait()
	for _, one := range x.list() {
		one.finish()
		<-one.done
	}
}

func (x *talks) list() []*talk {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]*talk(nil), x.all...)
}

func (x *talks) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return // closed
		}
		x.waiting(addrPort(conn.RemoteAddr())) <- conn.(*net.TCPConn)
	}
}

// waiting returns the channel on which a client's connection arrives.
func (x *talks) waiting(client netip.AddrPort) chan *net.TCPConn {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := x.accepted[client]
	if c == nil {
		c = make(chan *net.TCPConn, 4)
		x.accepted[client] = c
	}
	return c
}

func addrPort(a net.Addr) netip.AddrPort {
	ap := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// begin opens a connection in the background. limit is the number of bytes each way, or 0 for no limit.
func (x *talks) begin(v6 bool, limit int64) *talk {
	x.mu.Lock()
	defer x.mu.Unlock()
	one := &talk{x: x, to: x.to.AddrPort4(x.port), limit: limit, stop: make(chan struct{}), done: make(chan struct{})}
	if v6 {
		one.to = x.to.AddrPort6(x.port)
	}
	one.up.salt, one.down.salt = int(x.rng.Uint32()), int(x.rng.Uint32())
	one.up.sizes, one.down.sizes = x.rng.Uint64(), x.rng.Uint64()
	x.all = append(x.all, one)
	go func() {
		defer close(one.done)
		one.err = one.run()
	}()
	return one
}

// finish tells both ends to stop sending.
func (one *talk) finish() { one.once.Do(func() { close(one.stop) }) }

func (one *talk) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), talkPatience)
	defer cancel()
	begun := time.Now()
	conn, err := one.x.from.Dial(ctx, "tcp", one.to.String())
	if err != nil {
		return fmt.Errorf("connect, after %v: %w", time.Since(begun).Round(time.Millisecond), err)
	}
	c := conn.(*net.TCPConn)
	defer c.Close()
	local := addrPort(c.LocalAddr())
	one.local.Store(&local)
	_ = c.SetDeadline(begun.Add(talkPatience))
	errs := make(chan error, 3)
	go func() { errs <- wrap("client writes", one.write(c, &one.up)) }()
	go func() { errs <- wrap("client reads", one.down.read(c)) }()
	go func() { errs <- one.serve(ctx, one.x.waiting(local)) }()
	var first error
	for range 3 {
		if err := <-errs; err != nil && first == nil {
			first = fmt.Errorf("%w (%s)", err, one.counts())
			_ = c.SetDeadline(time.Now()) // makes the others end
			cancel()
		}
	}
	if first == nil && (one.up.got.Load() != one.up.sent.Load() || one.down.got.Load() != one.down.sent.Load()) {
		first = fmt.Errorf("bytes are missing: %s", one.counts())
	}
	return first
}

func (one *talk) counts() string {
	return fmt.Sprintf("up %d of %d, down %d of %d", one.up.got.Load(), one.up.sent.Load(), one.down.got.Load(), one.down.sent.Load())
}

// serve is the server's end. If a gateway falls back after it has connected to the server, the server has accepted a
// connection on which only a reset arrives; serve then waits for the next one.
func (one *talk) serve(ctx context.Context, accepted <-chan *net.TCPConn) error {
	for {
		var s *net.TCPConn
		select {
		case s = <-accepted:
		case <-ctx.Done():
			return errors.New("connected and never accepted")
		}
		err := one.serveOne(ctx, s)
		if !errors.Is(err, syscall.ECONNRESET) || one.up.got.Load() > 0 || one.down.got.Load() > 0 {
			return err
		}
		one.x.givenBack.Add(1)
		one.down.sent.Store(0)
	}
}

func (one *talk) serveOne(ctx context.Context, s *net.TCPConn) error {
	defer s.Close()
	defer context.AfterFunc(ctx, func() { _ = s.SetDeadline(time.Now()) })()
	written := make(chan error, 1)
	go func() { written <- wrap("server writes", one.write(s, &one.down)) }()
	err := wrap("server reads", one.up.read(s))
	if err != nil {
		_ = s.SetDeadline(time.Now())
	}
	if writeErr := <-written; err == nil {
		err = writeErr
	}
	return err
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// write sends random pieces until it is told to stop, then half-closes.
func (one *talk) write(c *net.TCPConn, w *oneWay) error {
	rng := rand.New(rand.NewPCG(w.sizes, 1))
	buf := make([]byte, 32<<10)
	for {
		select {
		case <-one.stop:
			return c.CloseWrite()
		case <-time.After(time.Duration(rng.IntN(5)) * time.Millisecond):
		}
		if one.x.quiet.Load() {
			continue
		}
		b := buf[:1+rng.IntN(len(buf))]
		if rng.IntN(4) == 0 {
			b = buf[:1+rng.IntN(100)]
		}
		if left := one.limit - w.sent.Load(); one.limit > 0 && left <= int64(len(b)) {
			b = b[:left]
			one.finish()
		}
		pattern(b, w.salt+int(w.sent.Load()))
		n, err := c.Write(b)
		w.sent.Add(int64(n))
		if err != nil {
			return err
		}
	}
}

// read compares everything up to the end of the stream with what it must be.
func (w *oneWay) read(c *net.TCPConn) error {
	buf, want := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		at := w.got.Load()
		pattern(want[:n], w.salt+int(at))
		if string(buf[:n]) != string(want[:n]) {
			return fmt.Errorf("wrong bytes after offset %d", at)
		}
		w.got.Add(int64(n))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// ended reports whether a talk is over, and how.
func (one *talk) ended() (bool, error) {
	select {
	case <-one.done:
		return true, one.err
	default:
		return false, nil
	}
}

// bytes returns how many bytes have arrived, both ways.
func (one *talk) bytes() int64 { return one.up.got.Load() + one.down.got.Load() }

// move waits until n more bytes have arrived each way on every connection that has not ended.
func (x *talks) move(t *testing.T, n int64) {
	t.Helper()
	type mark struct{ up, down int64 }
	marks := map[*talk]mark{}
	for _, one := range x.list() {
		marks[one] = mark{one.up.got.Load() + n, one.down.got.Load() + n}
	}
	for end := time.Now().Add(talkPatience); ; time.Sleep(2 * time.Millisecond) {
		waits := 0
		for one, m := range marks {
			if over, _ := one.ended(); !over && (one.up.got.Load() < m.up || one.down.got.Load() < m.down) {
				waits++
			}
		}
		if waits == 0 {
			return
		}
		if time.Now().After(end) {
			require.FailNow(t, "nothing moves", "%d of %d connections", waits, len(marks))
		}
	}
}

// over tells all connections to stop, waits for them to end, and returns their errors.
func (x *talks) over(c *tally) (errs []error) {
	for _, one := range x.list() {
		one.finish()
	}
	for _, one := range x.list() {
		<-one.done // each has a deadline of its own
		failed := int64(0)
		if one.err != nil {
			failed = 1
			errs = append(errs, fmt.Errorf("%v to %v: %w", one.local.Load(), one.to, one.err))
		}
		c.add(1, one.bytes(), failed)
	}
	return errs
}

// told lists what a gateway reports of these connections.
func (x *talks) told(g *gw) (list []report.ConnInfo) {
	mine := map[netip.AddrPort]bool{}
	for _, one := range x.list() {
		if local := one.local.Load(); local != nil {
			mine[*local] = true
		}
	}
	return g.everything(func(c report.ConnInfo) bool {
		return mine[c.Local] || mine[c.Remote]
	})
}
