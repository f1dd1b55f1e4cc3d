package netstack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/lab/leak"
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

// The names of states and events, as the table has them.
var (
	legNames      = [...]string{"mini", "leading", "shut", "split", "whole", "closing", "broken", "over", "reset"}
	legEventNames = [...]string{"grows", "led", "not led", "read", "broke", "close", "cut", "delivered", "forget", "abort"}
)

// legTable draws the rows of the table.
func legTable() string {
	var b strings.Builder
	line := func(from, on, to string) { fmt.Fprintf(&b, "//\t%-9s %-11s ─► %s\n", from, on, to) }
	for _, t := range legTransitions {
		if t.from == legAlive {
			line("alive", legEventNames[t.on], legNames[t.to])
			continue
		}
		for l, name := range legNames {
			if t.from.has(legState(l)) {
				line(name, legEventNames[t.on], legNames[t.to])
			}
		}
	}
	return b.String()
}

// The comment has the rows of the table, and no two of them begin alike.
func TestLegTable(t *testing.T) {
	src, err := os.ReadFile("leg_state.go")
	require.NoError(t, err)
	_, rows, ok := strings.Cut(string(src), "NEXT\n")
	require.True(t, ok)
	rows, _, ok = strings.Cut(rows, "type legState")
	require.True(t, ok)
	require.Equal(t, legTable(), rows)
	seen := map[legEvent]legStates{}
	for _, row := range legTransitions {
		require.Zero(t, seen[row.on]&row.from, "rows of %s", legEventNames[row.on])
		seen[row.on] |= row.from
	}
}

// legFacts is a wire leg as what is true of it.
type legFacts struct {
	grown, led, unread           bool // it takes an endpoint; has one; the mini socket has something left
	closed, broken, ended, reset bool
}

// state says all of it in one word.
func (m *legFacts) state() legState {
	switch {
	case m.reset:
		return legReset
	case m.ended:
		return legOver
	case m.broken:
		return legBroken
	case m.closed && m.led:
		return legClosing
	case m.closed:
		return legShut
	case m.led && m.unread:
		return legSplit
	case m.led:
		return legWhole
	case m.grown:
		return legLeading
	default:
		return legMini
	}
}

// happen changes the facts, and reports whether what happens may happen.
func (m *legFacts) happen(on legEvent) bool {
	lives, moves := !m.ended, !m.ended && !m.broken
	may := map[legEvent]bool{
		legGrows:     moves && !m.closed && !m.grown,
		legLed:       moves && m.grown && !m.led,
		legNotLed:    moves && m.grown && !m.led,
		legRead:      moves && !m.closed && m.led && m.unread,
		legBroke:     moves && !m.closed && !m.grown,
		legClose:     lives && !m.closed,
		legCut:       moves && !m.closed && (!m.led || m.unread),
		legDelivered: moves && m.closed && m.led,
		legForget:    lives,
		legAbort:     lives,
	}[on]
	if !may {
		return false
	}
	switch on {
	case legGrows:
		m.grown = true
	case legLed:
		m.led, m.unread = true, true
	case legNotLed:
		m.broken, m.ended = !m.closed, m.closed
	case legRead:
		m.unread = false
	case legBroke:
		m.broken = true
	case legClose:
		m.closed, m.grown, m.ended = true, true, m.broken
	case legAbort:
		m.ended, m.reset = true, true
	case legCut, legDelivered, legForget:
		m.ended = true
	}
	return true
}

// One word says what many would: whatever happens in whatever order, the table goes where the
// facts of a leg do.
func TestLegModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var f flow
		var m legFacts
		for range rapid.IntRange(1, 12).Draw(rt, "events") {
			on := legEvent(rapid.IntRange(0, len(legEventNames)-1).Draw(rt, "event"))
			was := f.state()
			require.Equal(rt, m.happen(on), f.step(on), "%s when %s", legEventNames[on], legNames[was])
			require.Equal(rt, m.state(), f.state(), "%s when %s", legEventNames[on], legNames[was])
			require.Equal(rt, !m.ended, f.alive())
			require.Equal(rt, m.led && !m.ended, f.state().endpoint())
			require.Equal(rt, m.grown && !m.led && !m.ended && !m.broken, f.state().led())
		}
	})
}

// randomly uses c in as many ways as there are at once, until it has been ended. wrote is what
// was taken, read what has come.
func randomly(t *testing.T, c *Conn, seed uint64) (wrote, read []byte) {
	var all sync.WaitGroup
	over := make(chan struct{})
	ended := func() bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	}
	all.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 1))
		for !ended() {
			p := make([]byte, 1+rng.IntN(900))
			for i := range p {
				p[i] = byte(len(wrote) + i)
			}
			n, err := c.Write(p)
			wrote = append(wrote, p[:n]...)
			if err != nil {
				time.Sleep(time.Millisecond)
			}
		}
	})
	all.Go(func() {
		p := make([]byte, 500)
		for !ended() {
			n, err := c.Read(p)
			read = append(read, p[:n]...)
			switch {
			case err == nil:
			case errors.Is(err, ErrWouldBlock):
				time.Sleep(100 * time.Microsecond)
			default:
				known := errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET)
				if !known {
					t.Errorf("read: %v", err)
				}
				return
			}
		}
	})
	all.Go(func() {
		var written, heard uint64
		for !ended() {
			w, h := c.Vitals()
			if w < written || h < heard {
				t.Errorf("vitals went from %d, %d to %d, %d", written, heard, w, h)
			}
			written, heard = w, h
			c.Over()
			c.Acknowledged(w)
			time.Sleep(50 * time.Microsecond)
		}
	})
	rng := rand.New(rand.NewPCG(seed, 2))
	for range rng.IntN(8) {
		time.Sleep(time.Duration(rng.IntN(800)) * time.Microsecond)
		switch rng.IntN(6) {
		case 0:
			c.QuickACK()
		case 1:
			_ = c.CloseWrite()
		case 2:
			_ = c.SetKeepalive(time.Hour, time.Hour, 3)
		case 3:
			c.Ask(nil)
		case 4:
			c.MarkCarrying()
		case 5:
			c.SetNotify(func() {})
		}
	}
	ends := []func(){func() { _ = c.Close() }, c.Abort, c.Forget, func() { c.s.Forget(c.Tuple()) }}
	for range 1 + rng.IntN(2) {
		all.Go(ends[rng.IntN(len(ends))])
	}
	time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
	close(over)
	all.Wait()
	return wrote, read
}

// Whatever is asked of a leg, in whatever order and by however many at once: what is read is what
// was written, and an end is an end.
func TestLegAtRandom(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{seed: seed})
			c, s := w.minis()
			if seed%2 == 0 {
				bad := wire.Impairment{Loss: 0.05, Dup: 0.05, Reorder: 0.05, Delay: 100 * time.Microsecond}
				w.wire.A().Impair(bad)
				w.wire.B().Impair(bad)
			}
			var both sync.WaitGroup
			var wrote, read [2][]byte
			for i, end := range []*Conn{c, s} {
				both.Go(func() { wrote[i], read[i] = randomly(t, end, 2*seed+uint64(i)) })
			}
			both.Wait()
			for i := range wrote {
				require.LessOrEqual(t, len(read[1-i]), len(wrote[i]))
				require.Equal(t, string(wrote[i][:len(read[1-i])]), string(read[1-i]))
			}
			w.wire.A().Impair(wire.Impairment{})
			w.wire.B().Impair(wire.Impairment{})
			c.Abort() // of what waits for an acknowledgement of its FIN
			s.Abort()
			for _, stack := range []*Stack{w.gw, w.srv} {
				require.Zero(t, stack.Stats().Flows)
			}
			for _, end := range []*Conn{c, s} {
				require.True(t, end.Over())
				require.False(t, end.f.alive())
			}
		})
	}
}

// The wire leg of an idle connection has these.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[flow](t, 192)
	leak.SizeAtMost[Conn](t, 320)
	leak.SizeAtMost[adoption](t, 96)
}
