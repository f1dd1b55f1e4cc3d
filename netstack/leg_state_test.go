package netstack

import (
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

	"github.com/smcgw/smcgw/lab/wire"
)

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
