package netstack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/wire"
)

// minis are both ends of a connection without an endpoint.
func (w *world) minis() (c, s *Conn) {
	w.t.Helper()
	return w.connect(false)
}

// endpoints connects two applications, by wire legs that gVisor moves.
func (w *world) endpoints() (c, s *Conn) {
	w.t.Helper()
	c, s = w.minis()
	c.grown(w.t)
	s.grown(w.t)
	return c, s
}

// What a carried connection says on its wire leg takes no endpoint, and none of the packets
// that a held acknowledgement saves.
func TestLegStaysMini(t *testing.T) {
	w := newWorld(t, worldOptions{clock: slowClock(t)}) // an acknowledgement that is late takes an endpoint
	c, s := w.minis()
	for _, n := range []int{400, 300, 40, 1} {
		say(t, c, s, n)
		say(t, s, c, n)
	}
	require.NoError(t, c.SetKeepalive(time.Hour, time.Hour, 3))
	heard := make(chan struct{})
	s.Ask(func() { close(heard) })
	<-heard
	s.MarkCarrying()
	c.Abort()
	readError(t, s, syscall.ECONNRESET)
	require.True(t, s.Over())
	_, err := s.Write([]byte("too late"))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	s.Abort()
	for _, stack := range []*Stack{w.gw, w.srv} {
		st := stack.Stats()
		require.Zero(t, st.Grown)
		require.Zero(t, st.Flows)
		require.LessOrEqual(t, st.SegmentsSent, uint64(16))
	}
}

// say sends one message of n bytes, which is one segment.
func say(t *testing.T, from, to *Conn, n int) {
	t.Helper()
	data := bytes.Repeat([]byte{byte(n)}, n)
	k, err := from.Write(data)
	require.NoError(t, err)
	require.Equal(t, n, k)
	got := make([]byte, n)
	readFull(t, to, got)
	require.Equal(t, data, got)
}

// talk writes messages of random sizes to from and reads them at to, and calls between now and
// then.
func talk(t *testing.T, from, to *Conn, rng *rand.Rand, between func(i int)) {
	for i := range 30 {
		data := make([]byte, 1+rng.IntN(900))
		for j := range data {
			data[j] = byte(rng.Uint32())
		}
		got := make(chan error, 1)
		go func() {
			b := make([]byte, len(data))
			readFull(t, to, b)
			if !bytes.Equal(data, b) {
				got <- fmt.Errorf("message %d is another", i)
				return
			}
			got <- nil
		}()
		for done := 0; done < len(data); {
			n, err := from.Write(data[done:])
			done += n
			if errors.Is(err, ErrWouldBlock) {
				time.Sleep(time.Millisecond)
				continue
			}
			require.NoError(t, err)
		}
		between(i)
		require.NoError(t, <-got)
	}
}

// An endpoint may take the place of a mini socket at any time, at either end or at both, on a
// bad network too, and no byte tells.
func TestGrow(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{seed: seed})
			c, s := w.minis()
			if seed%3 != 0 {
				bad := wire.Impairment{Loss: 0.05, Dup: 0.05, Reorder: 0.05, Delay: time.Millisecond}
				w.wire.A().Impair(bad)
				w.wire.B().Impair(bad)
			}
			rng := rand.New(rand.NewPCG(seed, 1))
			at := map[*Conn]int{c: rng.IntN(60), s: rng.IntN(60)} // in the second half: never
			var both sync.WaitGroup
			for i, way := range [][2]*Conn{{c, s}, {s, c}} {
				rng := rand.New(rand.NewPCG(seed, uint64(2+i)))
				both.Go(func() {
					talk(t, way[0], way[1], rng, func(n int) {
						if n == at[way[0]] {
							way[0].QuickACK()
						}
					})
				})
			}
			both.Wait()
			transfer(t, c, s, 200_000)
			transfer(t, s, c, 200_000)
			w.wire.A().Impair(wire.Impairment{})
			w.wire.B().Impair(wire.Impairment{})
			halfClose(t, c, s)
			require.Zero(t, w.srv.Stats().ChecksumErrors+w.gw.Stats().ChecksumErrors)
		})
	}
}

// What ends a connection ends it also while gVisor is led, and nothing stays.
func TestEndWhileGrowing(t *testing.T) {
	ends := map[string]func(*Conn){
		"abort": (*Conn).Abort, "forget": (*Conn).Forget, "close": func(c *Conn) { _ = c.Close() },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			for i := range 20 {
				w := newWorld(t, worldOptions{})
				c, s := w.minis()
				say(t, c, s, 100)
				c.QuickACK()
				time.Sleep(time.Duration(i*5) * time.Microsecond)
				end(c)
				switch name {
				case "abort":
					readError(t, s, syscall.ECONNRESET)
				case "close":
					readError(t, s, io.EOF)
				}
				s.Abort()
				within(t, "gone", func() bool { return w.gw.Stats().Flows == 0 })
				w.close()
			}
		})
	}
}

// A FIN and a gap take an endpoint; what came before is read first.
func TestBeyondMini(t *testing.T) {
	w := newWorld(t, worldOptions{})
	c, s := w.minis()
	_, err := s.Write([]byte("last words"))
	require.NoError(t, err)
	require.NoError(t, s.CloseWrite())
	got := make([]byte, len("last words"))
	readFull(t, c, got)
	require.Equal(t, "last words", string(got))
	readError(t, c, io.EOF)
	require.EqualValues(t, 1, w.gw.Stats().Grown)
	say(t, c, s, 100)
}

// What comes is acknowledged once, if nothing takes the acknowledgement along.
func TestMiniAcknowledgesOnce(t *testing.T) {
	clock := slowClock(t)
	w := newWorld(t, worldOptions{clock: clock})
	c, s := w.minis()
	say(t, c, s, 10)
	within(t, "acknowledged", func() bool { return c.f.una.Load() == c.f.sent.Load() })
	clock.Advance(10 * ackTick)
	sent := w.srv.Stats().SegmentsSent
	require.EqualValues(t, 1, sent, "the acknowledgement that nothing took along")
	require.EqualValues(t, 1, w.srv.Stats().ACKsLate)
}
