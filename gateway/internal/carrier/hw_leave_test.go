package carrier

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/twohosts"
	"github.com/smcgw/smcgw/verbs"
)

// closingQP is a queue pair that tells when it is about to be closed. Until then it may
// send.
type closingQP struct {
	verbs.QP
	closing func() error
}

func (q *closingQP) Close() error {
	if err := q.closing(); err != nil {
		return err
	}
	return q.QP.Close()
}

// replace has another queue pair stand for the one of a link.
func (s *side) replace(l *Link, qp verbs.QP) {
	a := s.hw.open()[0]
	s.on(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.links, l.QP)
		l.QP = qp
		a.links[qp] = l
	})
}

// TestHWSendBufferOutlivesQueuePair: when a connection leaves an adapter that goes, the
// next one of the peer gets its send buffer after the close of the queue pair, which may
// send from it until then.
func TestHWSendBufferOutlivesQueuePair(t *testing.T) {
	sides, s, c := newCarried(t)
	l := c.link[0]
	var sent *byte
	s.on(func() { sent = &l.EP.Tail(0)[0] })
	given, looked := false, make(chan struct{})
	s.replace(l, &closingQP{l.QP, func() error {
		defer close(looked)
		r, err := l.Arena.AllocLocal(farRing) // as the endpoint of the next connection does
		if err != nil {
			return err
		}
		given = &r.Bytes()[0] == sent
		return r.Free()
	}})
	_, err := s.hw.Withdraw("rxe0")
	require.NoError(t, err)
	<-looked
	require.False(t, given, "the queue pair sends what another connection writes")
	s.on(func() { require.Equal(t, "kept", string(l.EP.Tail(0))) })
	for _, sent := range s.returns {
		sent()
	}
	sides[1].on(c.link[1].Close)
	eventually(t, s.isEmpty, "the memory is back")
}

// TestHWClosesBehindACallThatHangs: an adapter that has failed may keep a call for longer
// than connections may take to leave. What the call made is closed after it, and the
// adapter after that, or with the carrier.
func TestHWClosesBehindACallThatHangs(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprintf("the carrier ends %v", ends), func(t *testing.T) {
			t.Parallel() // it waits as long as connections may take to leave
			var s *side
			t.Cleanup(func() { // after the end of the carrier
				require.True(t, s.host.last().isClosed())
				require.Zero(t, s.Pool.Stats().Reserved, "the memory is back")
			})
			sides := newSides(t, 100)
			s = sides[0]
			c := meet(t, sides, hwOf)
			dev := s.host.last()
			hangs, returns := make(chan struct{}), make(chan struct{})
			s.host.mu.Lock()
			dev.hangs = func() { close(hangs); <-returns }
			s.host.mu.Unlock()
			connected := make(chan error, 1)
			s.Shards[0].Post(func() { c.link[0].Connect(c.to, func(err error) { connected <- err }) })
			<-hangs
			closed := time.AfterFunc(withdrawSoft, func() { s.on(c.link[0].Close) }) // as connections are when it is hard
			defer closed.Stop()
			_, err := s.hw.Withdraw("rxe0")
			require.ErrorIs(t, err, verbs.ErrBusy)
			require.Empty(t, s.hw.open())
			require.False(t, dev.isClosed())
			sides[1].on(c.link[1].Close)
			if ends {
				time.AfterFunc(100*time.Millisecond, func() { close(returns) })
				return
			}
			close(returns)
			require.ErrorIs(t, <-connected, ErrClosed)
			eventually(t, dev.isClosed, "it is closed")
		})
	}
}

// TestHWQueuePairIsNotLetGo: what a queue pair reaches that the adapter cannot close is no
// other connection's, whether its connection ends or goes on over the relay.
func TestHWQueuePairIsNotLetGo(t *testing.T) {
	for _, departs := range []bool{false, true} {
		t.Run(fmt.Sprintf("departs %v", departs), func(t *testing.T) {
			sides, s, c := newCarried(t)
			l := c.link[0]
			s.replace(l, &closingQP{l.QP, func() error { return errors.Join(l.QP.(*closingQP).QP.Close(), verbs.ErrBusy) }})
			if departs {
				sent := func() {}
				s.on(func() { sent, _ = l.Depart() })
				sent()
			} else {
				s.on(l.Close)
			}
			hl := l.peer.(*hwLink)
			eventually(t, func() bool {
				s.hw.forgetIdle(time.Now().Add(poolIdle))
				return s.device(t).Use["qps"] == 0 && hl.lane.Used() == linkNeed()
			}, "its room alone is in use")
			require.GreaterOrEqual(t, l.Arena.Stats().Used, int64(2*farRing), "so is its memory")
			require.NoError(t, l.EP.Release()) // the adapter has let it go
			sides[1].on(c.link[1].Close)
			eventually(t, s.isEmpty, "the memory is back")
		})
	}
}

// TestHWGoesWithoutAnEvent: connections leave an adapter that the host does not have any
// more.
func TestHWGoesWithoutAnEvent(t *testing.T) {
	sides, s, c := newCarried(t)
	dev := s.host.last()
	s.host.has()
	eventually(t, dev.isClosed, "the device is closed")
	require.Equal(t, 1, s.gone())
	s.host.has("rxe0/1")
	eventually(t, func() bool { return s.device(t).State == report.DeviceActive }, "it comes back")
	s.returns[0]()
	sides[1].on(c.link[1].Close)
	eventually(t, s.isEmpty, "the memory is back")
}

// TestHWFailsWhileTheCarrierEnds: an adapter that fails after the beginning of Close is closed
// by that alone.
func TestHWFailsWhileTheCarrierEnds(t *testing.T) {
	s := newSides(t, 100)[0]
	a, dev := s.hw.open()[0], s.host.last()
	s.hw.mu.Lock()
	s.hw.shut = true
	s.hw.mu.Unlock()
	for _, e := range []verbs.EventType{verbs.EventDeviceFatal, verbs.EventCQErr} { // one for the adapter's goroutine
		dev.async.Notify(verbs.AsyncEvent{Type: e})
	}
	s.hw.attend(a)
	s.hw.work.Wait()
	require.False(t, a.isLeaving())
}

// TestHWIsWithdrawnWhileItIsLost: an adapter that an operator wants stays closed, too, if it
// has just failed.
func TestHWIsWithdrawnWhileItIsLost(t *testing.T) {
	s := newSides(t, 100)[0]
	a, dev := s.hw.open()[0], s.host.last()
	at, err := s.hw.DatagramsAt(s.addr, addrA)
	require.NoError(t, err)
	_, leave, err := at.Hold(s.Shards[0], linkNeed()/2)
	require.NoError(t, err)
	dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventDeviceFatal})
	eventually(t, a.isLeaving, "it is being closed")
	_, err = s.hw.Withdraw("rxe0")
	require.NoError(t, err)
	leave()
	eventually(t, dev.isClosed, "it is closed")
	state := func(name string) report.DeviceState {
		list := s.hw.Devices()
		i := slices.IndexFunc(list, func(d report.DeviceInfo) bool { return d.Name == name })
		if i < 0 {
			return report.DeviceAbsent
		}
		return list[i].State
	}
	eventually(t, func() bool {
		s.host.has("rxe0/1", "rxe1/1")
		return state("rxe1/1") == report.DeviceActive
	}, "the next one is opened")
	require.Equal(t, report.DeviceDown, state("rxe0/1"))
}

// onlyGrows returns what wants the counters of a device to be no less than they were.
func onlyGrows(t *testing.T, device func() report.DeviceInfo) func() {
	t.Helper()
	before := device().Counters
	return func() {
		t.Helper()
		now := device().Counters
		for name, n := range before {
			require.GreaterOrEqual(t, now[name], n, name)
		}
		before = now
	}
}

// TestHWGoesOnCounting: what an adapter has counted falls neither while it is away nor when it
// is used again.
func TestHWGoesOnCounting(t *testing.T) {
	sides, s, c := newCarried(t)
	require.NotZero(t, s.device(t).Counters["pairs_made"])
	require.NotZero(t, s.device(t).Counters["tx_packets"])
	grows := onlyGrows(t, func() report.DeviceInfo { return s.device(t) })
	for range 2 {
		_, err := s.hw.Withdraw("rxe0")
		require.NoError(t, err)
		require.Equal(t, report.DeviceDown, s.device(t).State)
		grows()
		s.hw.Return()
		s.host.has("rxe0/1")
		eventually(t, func() bool { return s.device(t).State == report.DeviceActive }, "it comes back")
		grows()
	}
	s.returns[0]()
	sides[1].on(c.link[1].Close)
	eventually(t, s.isEmpty, "the memory is back")
}

// TestHWDoesNotAnswer: an adapter whose calls hang keeps no connection, and holds no more than the
// calls that were under way. What they make is closed when they return, and the adapter used again, or closed
// where it was to go.
func TestHWDoesNotAnswer(t *testing.T) {
	for _, c := range []struct {
		call string
		goes bool
	}{{call: "AllocPD"}, {call: "CreateCQ"}, {call: "CreateQP"}, {call: "AllocMR"}, {"AllocPD", true}, {"CreateQP", true}} {
		name := c.call
		if c.goes {
			name += " of one that goes"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for calls that hang
			cfg := config.Config{Carriers: []report.DeviceKind{report.DeviceHW}, HW: config.HW{TrafficClass: 104}}
			s := openSide(t, cfg, always(twohosts.Hosts(t)[0].Addr), nil, twohosts.FreePort(t))
			dev, held := s.host.last(), make(chan struct{})
			release := sync.OnceFunc(func() { close(held) })
			t.Cleanup(release)
			s.host.mu.Lock()
			dev.held = map[string]chan struct{}{c.call: held}
			s.host.mu.Unlock()
			over := make(chan struct{})
			go func() {
				defer close(over)
				var all sync.WaitGroup
				for range 20 {
					all.Go(func() { assert.ErrorIs(t, s.offer(addrB), loop.ErrNoAnswer) })
				}
				all.Wait()
				assert.ErrorIs(t, s.offer(addrA), loop.ErrNoAnswer, "after them")
			}()
			select {
			case <-over:
			case <-time.After(patience):
				require.FailNow(t, "connections wait for the adapter")
			}
			s.host.mu.Lock()
			require.LessOrEqual(t, s.host.calls, makersMost)
			s.host.mu.Unlock()
			info := s.device(t)
			require.Equal(t, []any{report.DeviceFailed, loop.ErrNoAnswer.Error(), uint64(0)}, []any{info.State, info.Error, info.Use["qps"]})
			peers := info.Use["peers"]
			s.hw.forgetIdle(time.Now().Add(2 * idlePeers))
			require.Equal(t, peers, s.device(t).Use["peers"], "a call may be one of the peer")
			if c.goes {
				_, err := s.hw.Withdraw("rxe0")
				require.ErrorIs(t, err, verbs.ErrBusy)
				require.False(t, dev.isClosed())
				release()
				eventually(t, dev.isClosed, "it is closed after the call")
			} else {
				release()
				eventually(t, func() bool { return s.offer(addrB) == nil }, "it answers again")
				eventually(t, func() bool { return s.device(t).State == report.DeviceActive }, "operators see it")
			}
			eventually(t, s.isEmpty, "nothing is left")
		})
	}
}
