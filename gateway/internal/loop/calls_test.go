package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A call that hangs keeps what waits for it, or after it, no longer than a call may take. After it
// what it made is undone, and the next is done.
func TestCallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCalls(2, time.Second, slog.New(slog.DiscardHandler))
		hang := make(chan struct{})
		var begun, undone atomic.Int32
		call := func() (int32, error) {
			n := begun.Add(1)
			<-hang
			return n, nil
		}
		undo := func(int32) { undone.Add(1) }
		start := time.Now()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				_, err := Make(c, call, undo)
				assert.ErrorIs(t, err, ErrNoAnswer)
			})
		}
		all.Wait()
		synctest.Wait()
		require.Equal(t, time.Second, time.Since(start))
		require.True(t, c.Silent())
		require.True(t, c.Busy())
		for range 50 {
			_, err := Make(c, call, undo)
			require.ErrorIs(t, err, ErrNoAnswer)
			require.ErrorIs(t, c.Do(func() error { panic("begun") }), ErrNoAnswer)
		}
		require.Equal(t, time.Second, time.Since(start), "at once")
		require.EqualValues(t, 2, begun.Load())
		require.Zero(t, undone.Load())
		close(hang)
		synctest.Wait()
		require.EqualValues(t, 2, undone.Load())
		require.False(t, c.Silent())
		require.False(t, c.Busy())
		n, err := Make(c, call, undo)
		require.NoError(t, err)
		require.EqualValues(t, 3, n)
		require.EqualValues(t, 2, undone.Load(), "what was returned is not undone")
		c.Close()
		require.ErrorIs(t, c.Do(func() error { panic("begun") }), ErrNoAnswer)
	})
}

// Many calls wait for each other for as long as each of them is in time, and the end waits for those under way.
func TestCallsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCalls(2, time.Second, slog.New(slog.DiscardHandler))
		var under atomic.Int32
		var all sync.WaitGroup
		failed := errors.New("no memory")
		for range 50 {
			all.Go(func() {
				assert.ErrorIs(t, c.Do(func() error {
					assert.LessOrEqual(t, under.Add(1), int32(2))
					time.Sleep(time.Second / 2)
					under.Add(-1)
					return failed
				}), failed)
			})
		}
		start := time.Now()
		all.Wait()
		require.Equal(t, 25*time.Second/2, time.Since(start))
		var over atomic.Bool
		go func() {
			_ = c.Do(func() error {
				time.Sleep(time.Second / 2)
				over.Store(true)
				return nil
			})
		}()
		synctest.Wait()
		c.Close()
		require.True(t, over.Load())
	})
}

// A panic is the caller's.
func TestCallPanics(t *testing.T) {
	c := NewCalls(2, time.Minute, slog.New(slog.DiscardHandler))
	for range 3 {
		func() {
			defer func() { require.Contains(t, recover(), "test") }()
			_, _ = Make(c, func() (int, error) { panic("test") }, func(int) { t.Error("nothing is made") })
		}()
	}
	require.NoError(t, c.Do(func() error { return nil }))
}

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
