package conn

import (
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// TestPanicEndsOneConnection: whichever of its steps panics, on either side, the
// connection ends with resets, the others lose no byte, and nothing of it stays.
func TestPanicEndsOneConnection(t *testing.T) {
	for _, kind := range allCarriers {
		steps := []string{faults.Carrying, faults.Closing}
		if kind == negotiate.CarrierRelay {
			steps = []string{faults.Relay}
		}
		for _, step := range steps {
			for side := range 2 {
				t.Run(kind.String()+"/"+step+"/"+[]string{"client", "server"}[side], func(t *testing.T) {
					testPanic(t, kind, step, side)
				})
			}
		}
	}
}

// onePanic panics at the first connection that arrives at a step.
type onePanic struct {
	step string
	over atomic.Bool
}

func (p *onePanic) At(step string, _ uint16) (held bool) {
	if step == p.step && !p.over.Swap(true) {
		panic("test")
	}
	return false
}

func (*onePanic) Takeover(string) bool { return false }

func testPanic(t *testing.T, kind negotiate.CarrierKind, step string, side int) {
	const flows, size = 6, 700_000
	p := newPair(t)
	g := p.g[side]
	g.Faults = &onePanic{step: step}
	var conns []*pairConn
	var errs, cut [flows][2]error // of reads and of writes
	var got [flows][2]int
	var all sync.WaitGroup
	for i := range flows {
		c := p.dial(t, kind)
		conns = append(conns, c)
		for end := range 2 {
			all.Go(func() { cut[i][end] = c.send(end, size, false) })
			all.Go(func() { got[i][end], errs[i][end] = c.receive(end) })
		}
	}
	all.Wait()
	hit := 0
	for i, c := range conns {
		states := c.over(t)
		if states == [2]life.Phase{life.Closed, life.Closed} {
			require.NoError(t, errs[i][0])
			require.NoError(t, errs[i][1])
			require.Equal(t, [2]int{size, size}, got[i])
			continue
		}
		hit++
		require.Equal(t, life.Aborted, states[side])
		info := c.flow[side].Info(time.Now())
		if kind != negotiate.CarrierRelay { // whose reason is why there is no other
			require.Equal(t, negotiate.ReasonInternalError.String(), info.Reason)
			require.Equal(t, report.DecidedLocal, info.DecidedBy)
		}
		for end := range 2 {
			require.NotEqual(t, -1, got[i][end], "wrong bytes")
			if errs[i][end] != nil {
				require.ErrorIs(t, errs[i][end], syscall.ECONNRESET)
			} else if cut[i][end] == nil { // or the write has taken the error, and the read finds an end
				require.Equal(t, size, got[i][end], "an end that was none, side %d of %d", end, side)
			}
		}
	}
	require.Equal(t, 1, hit)
	require.Equal(t, uint64(1), g.panics.count())
	for _, c := range conns {
		c.closeApps()
	}
	p.empty(t)
}

// TestPanicStopsThePump: what would move bytes of a link, after a panic in the midst of that
// and before the flow ends, moves none.
func TestPanicStopsThePump(t *testing.T) {
	p := newPair(t)
	for name, move := range map[string]func(c *carry){
		"pump":       (*carry).pump,
		"drain":      func(c *carry) { c.drain(report.DemotedByOperator) },
		"last words": (*carry).lastWords,
	} {
		t.Run(name, func(t *testing.T) {
			c := p.dial(t, negotiate.CarrierSHM)
			f, peer := c.flow[0], c.flow[1]
			picked, s := f.chosen(), f.Shard
			s.Post(func() {
				s.WorksFor(f)
				s.Post(func() {
					s.WorksFor(f)
					move(picked)
				})
				for end := range 2 {
					_, _ = c.app[end].Write([]byte("bytes"))
				}
				for peer.tx.Load() == 0 { // they are in the ring of the flow
					runtime.Gosched()
				}
				picked.Complete(nil)
			})
			require.Equal(t, life.Aborted, c.over(t)[0])
			info := f.Info(time.Now())
			require.Equal(t, negotiate.ReasonInternalError.String(), info.Reason)
			require.Zero(t, info.TxBytes)
			require.Zero(t, info.RxBytes)
			require.Empty(t, info.Demoted)
			c.closeApps()
		})
	}
	require.EqualValues(t, 3, p.g[0].panics.count())
	p.empty(t)
}

// TestAShardGoesOnBehindAPanic: what was to be done in the same turn is done.
func TestAShardGoesOnBehindAPanic(t *testing.T) {
	p := newPair(t)
	g := p.g[0]
	g.Faults = &onePanic{}
	c := p.dial(t, negotiate.CarrierSHM)
	f, s := c.flow[0], c.p.g[0].shards[0]
	var ran atomic.Int64
	s.Post(func() { // so that those after it are done in one turn
		for i := range 9 {
			s.Post(func() {
				if s.WorksFor(f); i == 4 {
					panic("test")
				}
				ran.Add(1)
			})
		}
		for i := range 3 {
			s.After(0, func() {
				if s.WorksFor(f); i == 1 {
					panic("test")
				}
				ran.Add(1)
			})
		}
	})
	require.Eventually(t, func() bool { return ran.Load() == 10 }, patience, time.Millisecond)
	c.over(t)
	c.closeApps()
	require.Equal(t, uint64(2), g.panics.count())
	p.empty(t)
}

// TestTooManyPanicsEndTheDaemon: what breaks again and again is broken for all.
func TestTooManyPanicsEndTheDaemon(t *testing.T) {
	var p panics
	now := time.Now()
	for i := range panicsMost {
		tooMany, quiet := p.note(now.Add(time.Duration(i) * 7 * time.Second))
		require.False(t, tooMany)
		require.Equal(t, i%9 != 0, quiet, "%d: a stack a minute", i)
	}
	tooMany, _ := p.note(now.Add(panicsMost * 7 * time.Second))
	require.False(t, tooMany, "the first is longer ago than a minute")
	for range panicsMost - 2 {
		tooMany, _ = p.note(now.Add(80 * time.Second))
	}
	require.True(t, tooMany)
	require.Equal(t, uint64(2*panicsMost-1), p.count())

	died := false
	e := &Env{Log: slog.New(slog.DiscardHandler), Die: func() { died = true }}
	f := &Flow{env: e}
	for range panicsMost {
		e.panics.note(time.Now())
	}
	func() {
		defer f.contain()
		panic("test")
	}()
	require.True(t, died)
}

// brokenProvider panics when it is asked for a link.
type brokenProvider struct{ carrier.Provider }

func (brokenProvider) Offer(carrier.Request) (*carrier.Link, negotiate.CarrierOffer, error) {
	panic("test")
}

// TestPanicWhileOffering: a panic in one device leaves nothing of what others have made for
// the connection.
func TestPanicWhileOffering(t *testing.T) {
	p := newPair(t)
	a, b := newFakeWires(1<<20, 1<<20)
	c := p.begin(t, a, b)
	g, f := p.g[0], c.flow[0]
	for i, prov := range g.Providers {
		if i > 0 {
			g.Providers[i] = brokenProvider{prov}
		}
	}
	func() {
		defer f.contain()
		f.makeOffers(&negotiate.Proposal{})
	}()
	require.EqualValues(t, 1, g.Panics())
	c.flow[1].call(c.flow[1].replaced)
	c.over(t)
	c.closeApps()
	p.empty(t)
}

// TestAPanicAboutNoFlowIsNotSurvived: a callback about a tuple without a flow.
func TestAPanicAboutNoFlowIsNotSurvived(t *testing.T) {
	require.Panics(t, func() {
		d := Desk{Find: func(host.Tuple) *Flow { return nil }}
		defer d.containAbout(host.Tuple{})
		panic("test")
	})
}
