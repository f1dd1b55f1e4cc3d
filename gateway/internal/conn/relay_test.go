package conn

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// turnMeter is a driver that measures what the relays of a shard move between two of
// its turns.
type turnMeter struct {
	moved       func() uint64
	last        uint64
	most, total atomic.Uint64
}

func (m *turnMeter) Progress(time.Time) (bool, time.Time) {
	now := m.moved()
	n := now - m.last
	first := m.last == 0
	if m.last = now; first {
		return false, time.Time{}
	}
	m.total.Add(n)
	m.most.Store(max(m.most.Load(), n))
	return false, time.Time{}
}

func (*turnMeter) Flush()       {}
func (*turnMeter) Arm() bool    { return true }
func (*turnMeter) Disarm()      {}
func (*turnMeter) Close() error { return nil }

// TestRelayLeavesRoom: however many relays of a shard could go on for ever, between
// two of its turns they move about a record, and flows with an rdma carrier go on.
func TestRelayLeavesRoom(t *testing.T) {
	p := newPair(t)
	var bulks []*pairConn
	for range 4 {
		c := p.dial(t, negotiate.CarrierRelay)
		bulks = append(bulks, c)
		for i := range c.app {
			go func() {
				b := make([]byte, 1<<20)
				for {
					if _, err := c.app[i].Write(b); err != nil {
						return
					}
				}
			}()
			go func() { _, _ = io.Copy(io.Discard, c.app[i]) }()
		}
	}
	meter := &turnMeter{moved: func() (n uint64) {
		for _, c := range bulks {
			n += c.flow[0].tx.Load() + c.flow[0].rx.Load()
		}
		return n
	}}
	s := p.g[0].shards[0]
	s.Call(func() { s.AddDriver(meter) })
	small := p.dial(t, negotiate.CarrierSHM)
	buf := make([]byte, 64)
	start, trips := time.Now(), 0
	for ; meter.total.Load() < 64<<20 && time.Since(start) < patience; trips++ {
		_, err := small.app[0].Write(buf)
		require.NoError(t, err)
		_, err = io.ReadFull(small.app[1], buf)
		require.NoError(t, err)
	}
	t.Logf("%d messages, %v each, while relays moved %d MiB, at most %d KiB of them in a turn",
		trips, time.Since(start)/time.Duration(trips), meter.total.Load()>>20, meter.most.Load()>>10)
	require.GreaterOrEqual(t, meter.total.Load(), uint64(64<<20))
	require.Greater(t, trips, 20)
	require.LessOrEqual(t, meter.most.Load(), uint64(loop.BulkTurn+3*relayChunk), "what began before the budget was spent, and its last step")
	s.Call(func() { s.DropDriver(meter) })
	for _, c := range append(bulks, small) {
		c.closeApps()
		c.over(t)
	}
	p.empty(t)
}

// TestOneRecordWaits: while the wire leg takes nothing, one record of what the
// application wrote waits and nothing more is read; a reset of the application is
// noticed all the same.
func TestOneRecordWaits(t *testing.T) {
	p := newPair(t)
	a, b := newFakeWires(1000, 1000)
	c := p.begin(t, a, b)
	f := c.flow[0]
	f.call(func() { f.carryBy(negotiate.CarrierRelay) })
	f.call(func() { f.records(nil) })
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		_, _ = c.app[0].Write(make([]byte, 8<<20))
	}()
	waits := func() (n int) {
		p.g[0].shards[0].Call(func() { n = f.ctl.out.len() })
		return n
	}
	require.Eventually(t, func() bool { return waits() > 0 }, patience, time.Millisecond)
	require.Never(t, func() bool {
		return waits() > negotiate.DataHeaderLen+relayChunk || f.tx.Load() > relayChunk
	}, 50*time.Millisecond, time.Millisecond)
	require.Equal(t, life.Carrying, f.state())
	require.NoError(t, c.app[0].SetLinger(0))
	require.NoError(t, c.app[0].Close())
	<-wrote
	waitBuried(t, f)
	require.Equal(t, life.Aborted, f.state())
	c.flow[1].call(func() { c.flow[1].abort(negotiate.ReasonAppReset, false) })
	c.closeApps()
	c.over(t)
	p.empty(t)
}

// TestResetBehindAClosedWindow: an application is heard that resets its connection
// while the peer takes no more of its bytes.
func TestResetBehindAClosedWindow(t *testing.T) {
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierRelay) // the other application does not read
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		_, _ = c.app[0].Write(make([]byte, 64<<20))
	}()
	closed := func() (yes bool) {
		p.g[0].shards[0].Call(func() { yes = c.flow[0].core.Room() == 0 })
		return yes
	}
	require.Eventually(t, closed, patience, time.Millisecond)
	require.NoError(t, c.app[0].SetLinger(0))
	require.NoError(t, c.app[0].Close())
	<-wrote
	require.Equal(t, [2]life.Phase{life.Aborted, life.Aborted}, c.over(t))
	c.closeApps()
	p.empty(t)
}

// TestResetWaitsForItsBytes: on the wire leg, the reset of an application does not overtake what
// the application wrote before, and waits for a peer that is silent for a limited time.
func TestResetWaitsForItsBytes(t *testing.T) {
	p := newPair(t)
	for name, begin := range map[string]func() (*pairConn, *Flow, *fakeWire){
		"relay": func() (*pairConn, *Flow, *fakeWire) {
			c := p.dial(t, negotiate.CarrierRelay)
			return c, c.flow[1], c.wire[1]
		},
		"raw": func() (*pairConn, *Flow, *fakeWire) {
			c, f, w := p.rawPair(t, 1000, 1000)
			f.clear(nil)
			return c, f, w.peer
		},
	} {
		for _, answers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/answers=%t", name, answers), func(t *testing.T) {
				c, f, w := begin()
				w.setSilent(true)
				_, err := c.app[1].Write([]byte("last"))
				require.NoError(t, err)
				require.Eventually(t, func() bool { return f.tx.Load() == 4 }, patience, time.Millisecond)
				start := time.Now()
				require.NoError(t, c.app[1].SetLinger(0))
				require.NoError(t, c.app[1].Close())
				pump := func() *bulk {
					if f.raw != nil {
						return &f.raw.bulk
					}
					return &f.relay.bulk
				}
				require.Eventually(t, func() (waits bool) {
					f.call(func() { waits = pump().lastBytes != notAwaited })
					return waits
				}, patience, time.Millisecond)
				if answers {
					w.setSilent(false)
					f.call(func() { pump().later() }) // as the answer to Ask does
				}
				waitBuried(t, f)
				if !answers {
					require.GreaterOrEqual(t, time.Since(start), resetPatience)
				}
				require.Equal(t, life.Aborted, f.state())
				c.ended(t)
			})
		}
	}
	p.empty(t)
}

// TestRelayHasNoGoroutine: neither one that began there nor one that left its queue
// pair.
func TestRelayHasNoGoroutine(t *testing.T) {
	p := newPair(t)
	conns := []*pairConn{p.dial(t, negotiate.CarrierRelay), p.dial(t, negotiate.CarrierSHM)}
	before := runtime.NumGoroutine()
	for range 20 {
		conns = append(conns, p.dial(t, negotiate.CarrierRelay), p.dial(t, negotiate.CarrierSHM))
	}
	for _, f := range p.g[0].all() {
		f.Demote(report.DemotedByOperator)
	}
	buf := make([]byte, 1)
	for _, c := range conns {
		for i := range c.app {
			_, err := c.app[i].Write([]byte("x"))
			require.NoError(t, err)
			_, err = io.ReadFull(c.app[1-i], buf)
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool { return c.flow[1].Info(time.Now()).Carrier == report.CarrierRelay }, patience, time.Millisecond)
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, patience, 10*time.Millisecond)
	for _, c := range conns {
		c.closeApps()
		c.over(t)
	}
	p.empty(t)
}

// TestBrokenBeforeStart: a queue pair that fails before bytes flow leaves the relay an
// app leg whose edges come.
func TestBrokenBeforeStart(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			p := newPair(t)
			a, b := newFakeWires(1<<20, 1<<20)
			c := p.begin(t, a, b)
			c.meet(t, kind)
			for i, f := range c.flow {
				var cr *carry
				f.call(func() { cr = f.carries[0] })
				p.g[i].shards[0].Call(func() {
					assert.NoError(t, cr.QP.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
					cr.Shard.Collect()
				})
				require.Eventually(t, func() (failed bool) {
					cr.Shard.Call(func() { failed = cr.EP.Err() != nil })
					return failed
				}, patience, time.Millisecond)
			}
			c.carry(kind)
			buf := make([]byte, 1)
			for round := range 6 {
				for i := range c.app {
					require.NoError(t, c.app[1-i].SetReadDeadline(time.Now().Add(patience)))
					_, err := c.app[i].Write([]byte{byte(round)})
					require.NoError(t, err)
					_, err = io.ReadFull(c.app[1-i], buf)
					require.NoError(t, err, "round %d, side %d", round, i)
				}
				time.Sleep(2 * life.BreakPatience / 4)
			}
			for i := range c.flow {
				require.Equal(t, report.CarrierRelay, c.flow[i].Info(time.Now()).Carrier)
			}
			c.closeApps()
			require.Equal(t, [2]life.Phase{life.Closed, life.Closed}, c.over(t))
			p.empty(t)
		})
	}
}

// TestBacklogModel: it is a queue of bytes, and an empty one is small.
func TestBacklogModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q backlog
		var want bytes.Buffer
		var next byte
		for range rapid.IntRange(0, 50).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "put") {
				b := make([]byte, rapid.IntRange(0, 3*backlogKeep).Draw(t, "n"))
				for i := range b {
					next++
					b[i] = next
				}
				q.put(b)
				want.Write(b)
			} else {
				n := rapid.IntRange(0, q.len()).Draw(t, "n")
				require.True(t, bytes.Equal(want.Next(n), q.bytes()[:n]))
				q.drop(n)
			}
			require.Equal(t, want.Len(), q.len())
			require.True(t, bytes.Equal(want.Bytes(), q.bytes()))
			if q.len() == 0 {
				require.LessOrEqual(t, cap(q.buf), backlogKeep)
			}
		}
	})
}
