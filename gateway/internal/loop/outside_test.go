package loop

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// guest makes calls that a program can hold up.
type guest struct {
	hold        chan struct{} // closed: calls return
	ready       bool
	begun, held atomic.Int32
	backs       atomic.Int32
	panics      chan any // nil: Back does not panic
}

func (g *guest) Owner() Owner   { return g }
func (g *guest) Panicked(r any) { g.panics <- r }
func (g *guest) Ready() bool    { return g.ready }
func (g *guest) Outside()       { g.begun.Add(1); <-g.hold }
func (g *guest) Held()          { g.held.Add(1) }
func (g *guest) Back() {
	if g.backs.Add(1) == 2 && g.panics != nil {
		panic("second")
	}
}

// TestHeldUpCall checks that a shard goes on without a call that is held up, also to its end, and hears of it later.
func TestHeldUpCall(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.Start()
	defer s.CloseFDs()
	quick := &guest{hold: make(chan struct{}), ready: true, panics: make(chan any, 1)}
	close(quick.hold)
	slow := [2]*guest{}
	h := &Heart{Write: func() error { return nil }, Pulse: new(Pulse)}
	h.Watch([]*Shard{s})
	ctx, cancel := context.WithCancel(t.Context())
	var beats sync.WaitGroup
	beats.Go(func() { h.Run(ctx) })
	for i := range slow {
		slow[i] = &guest{hold: make(chan struct{}), ready: true}
		s.Post(func() {
			s.Outside(slow[i])
			s.Outside(&guest{}) // not ready
			s.Outside(quick)
		})
		require.Eventually(t, func() bool { return quick.backs.Load() == int32(i+1) }, patience, time.Millisecond)
		require.Equal(t, []int32{1, 0}, []int32{slow[i].held.Load(), slow[i].backs.Load()})
	}
	require.Equal(t, "second", <-quick.panics)
	spent := s.processorTime()
	close(slow[0].hold)
	require.Eventually(t, func() bool { return slow[0].backs.Load() == 1 }, patience, time.Millisecond)
	require.GreaterOrEqual(t, s.processorTime(), spent)

	cancel()
	beats.Wait()
	last := &guest{hold: make(chan struct{}), ready: true}
	s.Post(func() { s.Outside(last) })
	require.Eventually(t, func() bool { return last.begun.Load() == 1 }, patience, time.Millisecond)
	s.Halt()
	require.EqualValues(t, 1, last.held.Load())
	for _, g := range []*guest{slow[1], last} {
		close(g.hold)
		require.Eventually(t, func() bool { return g.backs.Load() == 1 }, patience, time.Millisecond)
	}
	require.Eventually(t, func() bool { return s.held.Load() == 0 }, patience, time.Millisecond)
}

// TestHeldUpCallsAreBounded checks that a shard that has lost too many threads to calls loses no more.
func TestHeldUpCallsAreBounded(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.Start()
	defer s.CloseFDs()
	g := &guest{hold: make(chan struct{}), ready: true}
	for range mostHeld + 1 {
		s.Post(func() { s.Outside(g) })
	}
	require.Eventually(t, func() bool {
		s.relieve(time.Now())
		return s.held.Load() == mostHeld
	}, patience, time.Millisecond)
	time.Sleep(2 * heldAfter)
	s.relieve(time.Now())
	require.EqualValues(t, mostHeld, s.held.Load())
	require.True(t, s.Crowded())
	close(g.hold)
	s.Halt()
	require.Eventually(t, func() bool { return g.backs.Load() == mostHeld+1 && s.held.Load() == 0 }, patience, time.Millisecond)
}
