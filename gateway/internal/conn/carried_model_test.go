package conn

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// endpoint is one application with what it has sent and the other has not read.
type endpoint struct {
	*pairConn
	side  int
	sent  bytes.Buffer
	next  byte
	ended bool // wrote its FIN
	eof   bool // read the other's
}

func (e *endpoint) write(t require.TestingT, n int) {
	if e.ended {
		return
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = e.next + byte(i) + byte(i>>8)
	}
	_ = e.app[e.side].SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	k, err := e.app[e.side].Write(b)
	if err != nil && !timedOut(err) {
		require.NoError(t, err)
	}
	e.sent.Write(b[:k])
	e.next += byte(k) + 1
}

// read takes what is there, at most n bytes, and compares it.
func (e *endpoint) read(t require.TestingT, from *endpoint, n int, patience time.Duration) error {
	if e.eof {
		return io.EOF
	}
	b := make([]byte, n)
	_ = e.app[e.side].SetReadDeadline(time.Now().Add(patience))
	k, err := e.app[e.side].Read(b)
	require.True(t, bytes.Equal(from.sent.Next(k), b[:k]), "side %d read wrong bytes", e.side)
	if errors.Is(err, io.EOF) {
		require.True(t, from.ended, "end of a direction that has not ended")
		require.Zero(t, from.sent.Len(), "end before all bytes")
		e.eof = true
	}
	return err
}

func (e *endpoint) end(t require.TestingT) {
	if !e.ended {
		e.ended = true
		require.NoError(t, e.app[e.side].CloseWrite())
	}
}

// drain reads until the end, or an error.
func (e *endpoint) drain(t require.TestingT, from *endpoint) error {
	for {
		if err := e.read(t, from, 1<<18, patience); err != nil {
			return err
		}
	}
}

// both drains both sides at a time.
func both(t require.TestingT, es [2]*endpoint) (errs [2]error) {
	var wg sync.WaitGroup
	for i := range es {
		wg.Go(func() { errs[i] = es[i].drain(t, es[1-i]) })
	}
	wg.Wait()
	return errs
}

func drawWires(t *rapid.T) []*fakeWire {
	limit := rapid.SampledFrom([]int{64, 5000, 1 << 20}).Draw(t, "wire buffer")
	chunk := rapid.SampledFrom([]int{3, 100, 1 << 20}).Draw(t, "wire chunk")
	a, b := newFakeWires(limit, max(chunk, limit/1000))
	return []*fakeWire{a, b}
}

// transferModel runs random writes, reads and half-closes, and then one of the
// ways in which a connection ends.
//
// With leaving 2 the connection may leave its queue pair on the way, or find it
// broken; with 0 it does not.
func transferModel(t *rapid.T, p *pair, kind negotiate.CarrierKind, leaving int) {
	c := p.dial(t, kind, drawWires(t)...)
	defer c.closeApps()
	es := [2]*endpoint{{pairConn: c}, {pairConn: c, side: 1, next: 77}}
	for range rapid.IntRange(0, 12).Draw(t, "steps") {
		side := rapid.IntRange(0, 1).Draw(t, "side")
		e, other := es[side], es[1-side]
		switch rapid.IntRange(0, 7+leaving).Draw(t, "step") {
		case 0:
			e.end(t)
		case 8:
			c.demote(side)
		case 9:
			c.breakQueuePair(side)
		case 1, 2, 3:
			e.write(t, rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 600_000)).Draw(t, "n"))
		default:
			if err := e.read(t, other, rapid.IntRange(1, 300_000).Draw(t, "n"), 2*time.Millisecond); err != nil && !timedOut(err) {
				require.ErrorIs(t, err, io.EOF)
			}
		}
	}
	if leaving > 0 && rapid.Bool().Draw(t, "leave at last") {
		c.demote(rapid.IntRange(0, 1).Draw(t, "who"))
	}
	switch rapid.SampledFrom([]string{"close", "close", "reset", "cut", "drain"}).Draw(t, "end") {
	case "close":
		endInOrder(t, c, es)
	case "reset":
		side := rapid.IntRange(0, 1).Draw(t, "who")
		require.NoError(t, c.app[side].SetLinger(0))
		_ = c.app[side].Close()
		endByReset(t, c, es[1-side], es[side])
	case "cut":
		c.wire[0].cut()
		endTorn(t, c, es)
	case "drain":
		f := c.flow[rapid.IntRange(0, 1).Draw(t, "who")]
		f.call(func() { f.drain(negotiate.ReasonDrained) })
		endTorn(t, c, es)
	}
}

func endInOrder(t *rapid.T, c *pairConn, es [2]*endpoint) {
	first := rapid.IntRange(0, 1).Draw(t, "first")
	es[first].end(t)
	es[1-first].end(t)
	for _, err := range both(t, es) {
		require.ErrorIs(t, err, io.EOF)
	}
	c.closeApps()
	require.Equal(t, [2]life.Phase{life.Closed, life.Closed}, c.over(t))
	for i, f := range c.flow {
		info := f.Info(time.Now())
		require.Equal(t, info.TxBytes, c.flow[1-i].rx.Load())
	}
}

// endByReset: the side that is left sees a reset, or an end it has been told before.
func endByReset(t *rapid.T, c *pairConn, left, gone *endpoint) {
	err := left.drain(t, gone)
	if !gone.ended {
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	c.closeApps()
	c.over(t)
}

// endTorn: both see a reset unless both directions had ended.
func endTorn(t *rapid.T, c *pairConn, es [2]*endpoint) {
	for i, err := range both(t, es) {
		if !es[1-i].ended {
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
	}
	c.closeApps()
	c.over(t)
}

func TestRelayModel(t *testing.T) {
	p := newPair(t)
	rapid.Check(t, func(t *rapid.T) { transferModel(t, p, negotiate.CarrierRelay, 0) })
	p.empty(t)
}

// TestDemotedModel: a connection whose queue pair is left or breaks, at any byte,
// on either side or on both, ends as it would have.
func TestDemotedModel(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			p := newPair(t)
			rapid.Check(t, func(t *rapid.T) { transferModel(t, p, kind, 2) })
			p.empty(t)
			for _, g := range p.g {
				require.NotEmpty(t, g.snapshot().Demotions)
				for _, n := range g.snapshot().Demotions {
					require.Contains(t, report.DemotionCauses(), n.Reason)
				}
			}
		})
	}
}

// demote has one side leave the queue pair, if it has not.
func (c *pairConn) demote(side int) {
	f := c.flow[side]
	f.Demote(report.DemotedByOperator)
}

// breakQueuePair moves one side's queue pair to ERR.
func (c *pairConn) breakQueuePair(side int) {
	f := c.flow[side]
	if cr := f.chosen(); cr != nil {
		cr.Shard.Post(func() {
			if !cr.Closed() {
				_ = cr.QP.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState)
			}
		})
	}
}
