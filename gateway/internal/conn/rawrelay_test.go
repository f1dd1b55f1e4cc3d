package conn

import (
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// rawPair is a server's flow that is pumped raw; the test plays the native client on
// the other end of the wire leg.
func (p *pair) rawPair(t require.TestingT, limit, chunk int) (*pairConn, *Flow, *fakeWire) {
	a, b := newFakeWires(limit, chunk)
	c := p.begin(t, a, b)
	f := c.flow[1]
	p.g[1].shards[0].Call(func() { f.startRaw(false, func() {}) })
	return c, f, a
}

// ended ends what a test has left.
func (c *pairConn) ended(t require.TestingT) {
	c.closeApps()
	for _, f := range c.flow {
		f.call(func() { f.abort(negotiate.ReasonDrained, false) })
	}
	c.over(t)
}

// clear is the guard's word, with what it held.
func (f *Flow) clear(held []byte) {
	f.Shard.Call(func() { f.raw.forward(held) })
}

// TestRawRelayModel: every byte and both ends get through, whichever side ends first.
func TestRawRelayModel(t *testing.T) {
	p := newPair(t)
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{100, 5000, 1 << 20}).Draw(t, "wire buffer")
		c, f, w := p.rawPair(t, limit, limit)
		var sent, got [2][]byte // by the application, by the client
		var eof [2]bool
		feed := func(n int) []byte {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(rand.Uint32())
			}
			return b
		}
		held := feed(rapid.IntRange(0, 3000).Draw(t, "held"))
		sent[1] = append(sent[1], held...)
		left := [2][]byte{
			feed(rapid.IntRange(0, 300_000).Draw(t, "app")), feed(rapid.IntRange(0, 300_000).Draw(t, "client")),
		}
		cleared := rapid.Bool().Draw(t, "cleared at once")
		if cleared {
			f.clear(held)
		}
		buf := make([]byte, 1<<16)
		writes := [2]func(b []byte) (int, error){
			func(b []byte) (int, error) {
				_ = c.app[1].SetWriteDeadline(time.Now().Add(time.Millisecond))
				return c.app[1].Write(b)
			}, w.Write,
		}
		reads := [2]func(b []byte) (int, error){w.Read, func(b []byte) (int, error) {
			_ = c.app[1].SetReadDeadline(time.Now().Add(time.Millisecond))
			return c.app[1].Read(b)
		}}
		closes := [2]func() error{c.app[1].CloseWrite, w.CloseWrite}
		var closed [2]bool
		move := func(i int) {
			switch {
			case len(left[i]) > 0:
				n, _ := writes[i](left[i][:min(len(left[i]), 20_000)])
				sent[i], left[i] = append(sent[i], left[i][:n]...), left[i][n:]
			case !closed[i]:
				closed[i] = true
				require.NoError(t, closes[i]())
			}
		}
		take := func(i int) {
			n, err := reads[i](buf)
			got[i] = append(got[i], buf[:n]...)
			switch {
			case errors.Is(err, io.EOF):
				eof[i] = true
			case err != nil && !timedOut(err):
				require.ErrorIs(t, err, netstack.ErrWouldBlock)
			}
		}
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			rapid.SampledFrom([]func(int){move, take}).Draw(t, "step")(rapid.IntRange(0, 1).Draw(t, "direction"))
		}
		if !cleared {
			require.False(t, eof[1])
			require.Empty(t, got[1])
			f.clear(held)
		}
		for start := time.Now(); (!eof[0] || !eof[1]) && time.Since(start) < patience; {
			for i := range 2 {
				move(i)
				take(i)
			}
		}
		for i := range 2 {
			require.True(t, eof[i])
			require.Equal(t, sent[i], got[i])
		}
		require.NoError(t, c.app[1].Close())
		require.Eventually(t, func() (lingers bool) {
			f.Shard.Call(func() { lingers = f.raw.linger.Pending() })
			return lingers
		}, patience, time.Millisecond)
		require.Equal(t, life.Closing, f.state())
		f.call(func() { f.do(f.core.RawOver()) })
		c.ended(t)
		require.Equal(t, life.Closed, f.state())
		require.EqualValues(t, len(got[0]), f.tx.Load())
		require.EqualValues(t, len(got[1]), f.rx.Load())
	})
	p.empty(t)
}

// TestRawResets: a reset gets through although nothing is read, whichever side sends it.
func TestRawResets(t *testing.T) {
	p := newPair(t)
	appSees := func(t *testing.T, c *pairConn) {
		require.NoError(t, c.app[1].SetReadDeadline(time.Now().Add(patience)))
		_, err := io.Copy(io.Discard, c.app[1])
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	t.Run("application, the client reads nothing", func(t *testing.T) {
		c, f, w := p.rawPair(t, 1000, 1000)
		f.clear(nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = c.app[1].Write(make([]byte, 8<<20))
		}()
		require.Eventually(t, func() bool { return f.tx.Load() > 0 }, patience, time.Millisecond)
		require.Never(t, func() bool { return f.tx.Load() > relayChunk }, 20*time.Millisecond, time.Millisecond)
		require.NoError(t, c.app[1].SetLinger(0))
		require.NoError(t, c.app[1].Close())
		<-done
		waitBuried(t, f)
		require.Equal(t, life.Aborted, f.state())
		_, err := io.Copy(io.Discard, readerOf(t, w))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		c.ended(t)
	})
	t.Run("application, after its end", func(t *testing.T) {
		c, f, w := p.rawPair(t, 1000, 1000)
		f.clear(nil)
		_, err := w.Write([]byte("unread"))
		require.NoError(t, err)
		require.NoError(t, c.app[1].CloseWrite())
		require.Eventually(t, func() bool { return f.state() == life.Closing && f.rx.Load() == 6 }, patience, time.Millisecond)
		require.NoError(t, c.app[1].SetLinger(0))
		require.NoError(t, c.app[1].Close())
		waitBuried(t, f)
		require.Equal(t, life.Aborted, f.state())
		c.ended(t)
	})
	t.Run("client, the application reads nothing", func(t *testing.T) {
		c, f, w := p.rawPair(t, 1<<20, 1<<20)
		f.clear(nil)
		for {
			n, err := w.Write(make([]byte, 1<<20))
			if n == 0 {
				require.ErrorIs(t, err, netstack.ErrWouldBlock)
				before := f.rx.Load()
				if time.Sleep(20 * time.Millisecond); f.rx.Load() == before {
					break
				}
			}
		}
		w.Abort()
		waitBuried(t, f)
		require.Equal(t, life.Aborted, f.state())
		appSees(t, c)
		c.ended(t)
	})
	t.Run("client, after its end", func(t *testing.T) {
		c, f, w := p.rawPair(t, 1000, 1000)
		f.clear(nil)
		require.NoError(t, w.CloseWrite())
		_, err := c.app[1].Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		w.cut()
		waitBuried(t, f)
		require.Equal(t, life.Aborted, f.state())
		require.Eventually(t, func() bool { _, err := c.app[1].Write([]byte("x")); return err != nil }, patience, time.Millisecond)
		c.ended(t)
	})
	t.Run("client, before the guard", func(t *testing.T) {
		c, f, w := p.rawPair(t, 1000, 1000)
		w.Abort()
		_, err := c.app[1].Write([]byte("x"))
		require.NoError(t, err)
		waitBuried(t, f)
		appSees(t, c)
		c.ended(t)
	})
	p.empty(t)
}

// TestRawLastWords: what the client sent before its reset is given to the application, even if the
// relay finds the reset before it reads.
func TestRawLastWords(t *testing.T) {
	p := newPair(t)
	for name, find := range map[string]func(*rawRelay){
		"settle": (*rawRelay).settle,
		"write": func(r *rawRelay) {
			r.push([]byte("lost"))
			r.settle()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, f, w := p.rawPair(t, 1000, 1000)
			f.clear(nil)
			f.call(func() {})
			f.call(func() {
				_, err := w.Write([]byte("last"))
				assert.NoError(t, err)
				w.Abort()
				f.raw.hears = false
				find(f.raw)
			})
			require.NoError(t, c.app[1].SetReadDeadline(time.Now().Add(patience)))
			b, err := io.ReadAll(c.app[1])
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.Equal(t, "last", string(b))
			waitBuried(t, f)
			c.ended(t)
		})
	}
	p.empty(t)
}

// TestRawEndsInOrder: a wire leg that both ends have closed in order is no reset, however
// slowly the application reads what came before.
func TestRawEndsInOrder(t *testing.T) {
	p := newPair(t)
	c, f, w := p.rawPair(t, 1<<20, 1<<20)
	f.clear(nil)
	var sent int64
	for {
		n, err := w.Write(make([]byte, 1<<20))
		sent += int64(n)
		if n == 0 {
			require.ErrorIs(t, err, netstack.ErrWouldBlock)
			before := f.rx.Load()
			if time.Sleep(20 * time.Millisecond); f.rx.Load() == before {
				break
			}
		}
	}
	require.NoError(t, w.CloseWrite())
	require.NoError(t, c.app[1].CloseWrite())
	_, err := w.ReadContext(t.Context(), make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.True(t, f.wire.Over())
	f.raw.notify()
	f.Shard.Call(func() {})
	f.Shard.Call(func() { assert.False(t, f.core.Ended()) }) // after the turn that looked
	require.Equal(t, life.Closing, f.state())
	n, err := io.Copy(io.Discard, c.app[1])
	require.NoError(t, err)
	require.Equal(t, sent, n)
	require.NoError(t, c.app[1].Close())
	require.Eventually(t, func() (lingers bool) {
		f.Shard.Call(func() { lingers = f.raw.linger.Pending() })
		return lingers
	}, patience, time.Millisecond)
	f.call(func() { f.do(f.core.RawOver()) })
	c.ended(t)
	require.Equal(t, life.Closed, f.state())
	p.empty(t)
}

// TestRawLingersForASlowClient: a flow whose both directions have ended stays until its client
// has acknowledged every byte, or has stopped to acknowledge.
func TestRawLingersForASlowClient(t *testing.T) {
	p := newPair(t)
	for name, then := range map[string]func(*fakeWire){
		"acknowledged at last": func(w *fakeWire) { w.setSilent(false) },
		"given up":             (*fakeWire).cut,
	} {
		t.Run(name, func(t *testing.T) {
			c, f, w := p.rawPair(t, 1000, 1000)
			f.clear(nil)
			w.peer.setSilent(true)
			require.NoError(t, w.CloseWrite())
			_, err := c.app[1].Write([]byte("late"))
			require.NoError(t, err)
			require.NoError(t, c.app[1].Close())
			lingers := func() (pending bool) {
				f.Shard.Call(func() { pending = f.raw.linger.Pending() })
				return pending
			}
			require.Eventually(t, lingers, patience, time.Millisecond)
			f.call(f.raw.lingered)
			require.True(t, lingers())
			require.Equal(t, life.Closing, f.state())
			then(w.peer)
			f.call(f.raw.lingered)
			c.ended(t)
			require.Equal(t, life.Closed, f.state())
		})
	}
	p.empty(t)
}

// readerOf reads a wire leg to its end.
func readerOf(t *testing.T, w *fakeWire) io.Reader { return wireReader{t, w} }

type wireReader struct {
	t *testing.T
	w *fakeWire
}

func (r wireReader) Read(b []byte) (int, error) { return r.w.ReadContext(r.t.Context(), b) }

// TestRawHasNoGoroutine: a raw relay waits for nothing by itself. Only a shard runs it.
func TestRawHasNoGoroutine(t *testing.T) {
	p := newPair(t)
	c, _, w := p.rawPair(t, 1000, 1000)
	c.flow[1].clear([]byte("held"))
	b := make([]byte, 4)
	_, err := io.ReadFull(c.app[1], b)
	require.NoError(t, err)
	require.Equal(t, "held", string(b))
	_, err = c.app[1].Write([]byte("back"))
	require.NoError(t, err)
	_, err = io.ReadFull(readerOf(t, w), b)
	require.NoError(t, err)
	require.Equal(t, "back", string(b))
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for goroutine := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(goroutine, "conn.(*rawRelay)") {
			require.Contains(t, goroutine, "loop.(*Shard).run")
		}
	}
	c.ended(t)
}

// TestBegunAnewReturnsTheEntry: a client that begins again on the tuple of a flow that lingers
// has its SYN handed to the kernel, whatever the flow was; an entry of no flow would drop it
// and every one after it.
func TestBegunAnewReturnsTheEntry(t *testing.T) {
	for by, state := range map[life.By]ebpf.State{life.ByRelay: ebpf.StateServing, life.ByRaw: ebpf.StateRaw} {
		t.Run(state.String(), func(t *testing.T) {
			p := newPair(t)
			f := bareFlow(p.g[0], report.SideServer, 3100)
			tuple := ebpf.Tuple(f.Tuple)
			p.steer[0].Put(ebpf.Flow{Tuple: tuple, ISN: f.ISN, Side: ebpf.SideServer, State: state})
			f.call(func() { f.core.CarriedBy(by) })
			f.beganAnew(func() { f.env.returnSYN(f.Tuple, f.ISN, make([]byte, 40)) })
			waitBuried(t, f)
			f.call(func() {})
			if e, err := p.steer[0].Flow(tuple); err == nil {
				require.Equal(t, ebpf.StateReturned, e.State)
			}
		})
	}
}
