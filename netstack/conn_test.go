package netstack

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/packet"
)

func TestNotify(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	events := make(chan struct{}, 1000)
	s.SetNotify(func() { events <- struct{}{} })
	<-events // at once
	buf := make([]byte, 100)
	_, err := s.Read(buf)
	require.ErrorIs(t, err, ErrWouldBlock)
	require.NoError(t, writeAll(c, "ping"))
	within(t, "readable", func() bool { <-events; n, _ := s.Read(buf); return n == 4 })

	var room int
	for { // fill both buffers
		n, err := s.Write(make([]byte, 64<<10))
		room += n
		if err != nil {
			require.ErrorIs(t, err, ErrWouldBlock)
			break
		}
	}
	for len(events) > 0 {
		<-events
	}
	readFull(t, c, make([]byte, room))
	within(t, "writable", func() bool { <-events; n, _ := s.Write(buf); return n > 0 })
	s.SetNotify(nil)
	c.Abort()
	readError(t, s, syscall.ECONNRESET)
}

func TestContextEnds(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, _ := w.connect(false)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := c.ReadContext(ctx, make([]byte, 1))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, stop := context.WithCancelCause(context.Background())
	stop(io.ErrClosedPipe)
	n, err := c.WriteContext(ctx, make([]byte, 64<<20))
	require.ErrorIs(t, err, io.ErrClosedPipe)
	require.NotZero(t, n)
}

// Close delivers what was written, and the flow leaves the table by itself.
func TestClose(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	require.NoError(t, writeAll(c, "last words"))
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	buf := make([]byte, 10)
	readFull(t, s, buf)
	readError(t, s, io.EOF)
	require.NoError(t, s.Close())
	within(t, "tables empty", func() bool { return w.srv.Stats().Flows+w.gw.Stats().Flows == 0 })
}

// A closed connection that only waits is in the way of no new one.
func TestReuseInTimeWait(t *testing.T) {
	b := newBench(t, Config{})
	c := b.accept(1, 100)
	c.MarkCarrying()
	require.NoError(t, c.Close())
	_, fin := b.next()
	require.NotZero(t, fin.Flags()&packet.FlagFIN)
	b.fromClient(1, 101, fin.Seq()+1, packet.FlagACK|packet.FlagFIN, 0, "")
	b.next()
	require.Equal(t, 1, b.s.Stats().Flows)
	b.accept(1, 90000)
	require.Equal(t, 1, b.s.Stats().Flows)
}

// As with kernel sockets, closing over unread bytes is a reset.
func TestCloseUnread(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	require.NoError(t, writeAll(c, "unread"))
	within(t, "arrived", func() bool { return c.f.una.Load() == c.f.sent.Load() })
	require.NoError(t, s.Close())
	readError(t, c, syscall.ECONNRESET)
	require.Zero(t, w.srv.Stats().Flows)
}

// A keepalive that was due while it was off works when it is turned on again.
func TestKeepaliveTurnedOnAgain(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, _ := w.connect(false)
	require.NoError(t, c.SetKeepalive(0, 0, 0))
	for range 3 {
		require.NoError(t, c.SetKeepalive(20*time.Millisecond, 20*time.Millisecond, 1000))
		require.NoError(t, c.SetKeepalive(0, 0, 0))
		time.Sleep(100 * time.Millisecond)
	}
	w.wire.A().Impair(wire.Impairment{Loss: 1})
	time.Sleep(100 * time.Millisecond)
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, ErrWouldBlock, "it is off")
	require.NoError(t, c.SetKeepalive(20*time.Millisecond, 20*time.Millisecond, 3))
	readError(t, c, syscall.ETIMEDOUT)
}

func TestUserTimeout(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	transfer(t, c, s, 10)
	require.NoError(t, c.SetUserTimeout(100*time.Millisecond))
	w.wire.A().Impair(wire.Impairment{Loss: 1})
	require.NoError(t, writeAll(c, "into the void"))
	readError(t, c, syscall.ETIMEDOUT)
}

// Idle connections need no goroutines, and bytes move without garbage of ours.
func TestCheapConns(t *testing.T) {
	w := newWorld(t, worldOptions{})
	before := runtime.NumGoroutine()
	for port := range uint16(50) {
		syn := makeSYN(false, 20000+port, 1000, packet.RoleOffer)
		p, tcp, _ := parseTCP(syn)
		w.mu.Lock()
		w.syns[outboundKey(p.Header, tcp)] = syn
		w.mu.Unlock()
		w.answer(syn)
		w.adoptedConn()
		w.acceptedConn()
	}
	within(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= before+2 })
}

func TestReadDoesNotAllocate(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	buf := make([]byte, 16)
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = s.Read(buf) }), "would block")
	require.NoError(t, writeAll(c, string(make([]byte, 16*101))))
	within(t, "arrived", func() bool { return c.f.una.Load() == c.f.sent.Load() })
	allocs := testing.AllocsPerRun(100, func() {
		if n, err := s.Read(buf); n != len(buf) || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
	})
	require.LessOrEqual(t, allocs, 1.0) // window updates are gVisor's
}

func TestCloseEndsEverything(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.connect(false)
	c2, s2 := w.connect(true)
	s.MarkCarrying()
	waiting := make(chan error, 1)
	go func() {
		_, err := s2.ReadContext(context.Background(), make([]byte, 1))
		waiting <- err
	}()
	out := make(chan []byte, 100)
	w.wire.B().Impair(wire.Impairment{Filter: func(p []byte) []byte { out <- append([]byte(nil), p...); return p }})
	require.NoError(t, w.srv.Close())
	require.NoError(t, w.srv.Close())
	require.ErrorIs(t, <-waiting, net.ErrClosed)
	readError(t, c, syscall.ECONNRESET) // carrying: told
	_, err := c2.Read(make([]byte, 1))  // negotiating: not
	require.ErrorIs(t, err, ErrWouldBlock)
	_, err = s.Write([]byte("x"))
	require.Error(t, err)
}

// Closing in the middle of everything neither hangs nor leaves anything.
func TestCloseUnderLoad(t *testing.T) {
	for range 20 {
		b := newBench(t, Config{})
		go func() {
			for range b.h.accepted {
			}
		}()
		var work sync.WaitGroup
		stop := make(chan struct{})
		for lane := range uint16(3) {
			work.Go(func() {
				for port := uint16(1); port < 5000; port++ {
					select {
					case <-stop:
						return
					default:
					}
					b.link.Inject(makeSYN(port%2 == 0, port+lane*5000, 100, packet.RoleOffer))
					b.link.Inject(makeSYN(port%2 == 0, port+lane*5000, 200, packet.RoleOffer))
					syn := makeSYN(port%2 == 0, 20000+port+lane*5000, 100, packet.RoleOffer)
					synack := makeSYNACK(syn, 5000, packet.RoleAccept, testNonce, 101)
					if c, err := b.s.Adopt(syn, synack, 0); err == nil && port%3 == 0 {
						c.Abort()
					}
				}
			})
		}
		drained := make(chan struct{})
		go func() {
			for {
				select {
				case <-b.out:
				case <-drained:
					return
				}
			}
		}()
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, b.s.Close())
		close(stop)
		work.Wait()
		close(drained)
		close(b.h.accepted)
		require.Zero(t, b.s.Stats().Flows)
	}
}

func TestConfigProblemsAreReportedTogether(t *testing.T) {
	_, err := New(Config{Linger: -1, Limits: Limits{Flows: -1}})
	for _, want := range []string{"link", "handler", "linger", "limits.flows"} {
		require.ErrorContains(t, err, want)
	}
}

func TestManyConnections(t *testing.T) {
	w := newWorld(t, worldOptions{seed: 1, late: true})
	w.wire.A().Impair(wire.Impairment{Reorder: 0.1, Dup: 0.05})
	w.wire.B().Impair(wire.Impairment{Reorder: 0.1, Dup: 0.05})
	var bytes atomic.Int64
	const conns = 60
	done := make(chan struct{}, conns)
	go func() {
		for range conns {
			s := <-w.server.accepted
			go func() {
				n, err := io.Copy(io.Discard, contextReader{s})
				if err != nil {
					t.Error(err)
				}
				bytes.Add(n)
				_ = s.Close()
				done <- struct{}{}
			}()
		}
	}()
	for i := range conns {
		w.dialApp(serverAddr(i%2 == 0))
	}
	for range conns {
		c := w.adoptedConn()
		require.NoError(t, writeAll(c, string(make([]byte, 10000))))
		require.NoError(t, c.CloseWrite())
	}
	for range conns {
		select {
		case <-done:
		case <-time.After(patience):
			require.FailNow(t, "a connection has not ended", "%v", w.server.failures())
		}
	}
	require.EqualValues(t, conns*10000, bytes.Load())
}

type contextReader struct{ c *Conn }

func (r contextReader) Read(p []byte) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return r.c.ReadContext(ctx, p)
}

// behindGap sends n segments of one byte to s that it has to keep. The first has it grow.
func behindGap(t *testing.T, w *world, s *Conn, n int) {
	t.Helper()
	tup, seq, ack := s.Tuple(), s.f.awaited.Load()+1, s.f.sent.Load()
	opts := packet.AppendTimestamps(nil, s.f.serve.proof.Ask.TSVal+1000, 0)
	for i := range n {
		w.wire.A().Send(segmentOf(tup.Remote, tup.Local, seq+uint32(i%3)*2, ack, packet.FlagACK, opts, []byte("x")))
		if i == 0 {
			within(t, "it has an endpoint", func() bool { return s.f.state() == legWhole })
		}
	}
}

// The receive buffer of a leg is small until it relays.
func TestLegBuffer(t *testing.T) {
	w := newWorld(t, worldOptions{})
	_, s := w.minis()
	behindGap(t, w, s, 1)
	o := s.whole.ep.SocketOptions()
	require.EqualValues(t, legBuffer, o.GetReceiveBufferSize())
	s.QuickACK()
	require.EqualValues(t, defaultBuffer, o.GetReceiveBufferSize())
}

// One leg pins no more than its part of the memory for what is out of order, and leaves nothing of it behind.
func TestOutOfOrderIsBounded(t *testing.T) {
	w := newWorld(t, worldOptions{})
	_, s := w.minis()
	behindGap(t, w, s, 1000)
	within(t, "some are dropped", func() bool { return w.srv.Stats().ReorderDropped > 0 })
	used := w.srv.reorder.Used()
	require.Positive(t, used)
	require.LessOrEqual(t, used, int64(segment.HeldLeg))
	s.Abort()
	require.Zero(t, w.srv.reorder.Used())
}

// Without memory for what is out of order, what is lost arrives all the same.
func TestTransferWithoutReordering(t *testing.T) {
	w := newWorld(t, worldOptions{seed: 4})
	c, s := w.minis()
	c.grown(t)
	s.grown(t)
	var full [5]segment.Ahead
	for i := range full {
		full[i].Take(&w.srv.reorder, segment.Arrived{Seq: 2, End: 3, Cost: segment.HeldTotal / 4}, 1, true)
	}
	w.wire.A().Impair(wire.Impairment{Loss: 0.01})
	transfer(t, c, s, 1<<20)
	require.NotZero(t, w.srv.Stats().ReorderDropped)
	for i := range full {
		full[i].End(&w.srv.reorder)
	}
	within(t, "nothing is counted", func() bool { return w.srv.reorder.Used() == 0 })
}
