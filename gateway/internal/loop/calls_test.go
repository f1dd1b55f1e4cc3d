package loop

import (
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
