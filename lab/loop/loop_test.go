package loop

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// fakeDevice drives nothing but counts how it is driven.
type fakeDevice struct {
	verbs.Device

	err      error
	progress atomic.Int64
	flushes  atomic.Int64
	closed   atomic.Bool
	wakeIn   time.Duration
	work     atomic.Int64 // Progress calls that find work
}

func (d *fakeDevice) Drive(int, verbs.Poller) (verbs.Driver, error) { return d, d.err }

func (d *fakeDevice) Progress(now time.Time) (bool, time.Time) {
	d.progress.Add(1)
	if d.work.Add(-1) >= 0 {
		return true, time.Time{}
	}
	if d.wakeIn > 0 {
		return false, now.Add(d.wakeIn)
	}
	return false, time.Time{}
}
func (d *fakeDevice) Flush()       { d.flushes.Add(1) }
func (d *fakeDevice) Arm() bool    { return true }
func (d *fakeDevice) Disarm()      {}
func (d *fakeDevice) Close() error { d.closed.Store(true); return nil }

func TestLoop(t *testing.T) {
	d := &fakeDevice{}
	turns := atomic.Int64{}
	l, err := New(d, 0, func() bool { turns.Add(1); return false })
	require.NoError(t, err)
	ran := 0
	for range 100 {
		require.NoError(t, l.Do(func() { ran++ }))
	}
	require.Equal(t, 100, ran)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.True(t, d.closed.Load())
	require.ErrorIs(t, l.Do(func() {}), verbs.ErrClosed)
	require.Equal(t, d.progress.Load(), turns.Load())
	require.Equal(t, d.progress.Load(), d.flushes.Load())
}

// The loop sleeps when there is nothing to do, and wakes up when it is time.
func TestLoopSleeps(t *testing.T) {
	d := &fakeDevice{}
	d.work.Store(10)
	l, err := New(d, 0, nil)
	require.NoError(t, err)
	time.Sleep(20 * time.Millisecond)
	require.LessOrEqual(t, d.progress.Load(), int64(12))
	require.NoError(t, l.Close())

	d = &fakeDevice{wakeIn: 2 * time.Millisecond}
	begun := time.Now()
	l, err = New(d, 0, nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return d.progress.Load() > 5 }, 30*time.Second, time.Millisecond)
	require.NoError(t, l.Close())
	require.Less(t, d.progress.Load(), 1000+2*int64(time.Since(begun)/d.wakeIn))
}

func TestLoopCannotDrive(t *testing.T) {
	d := &fakeDevice{err: errors.New("no")}
	_, err := New(d, 0, nil)
	require.ErrorIs(t, err, d.err)
}

// Do never hangs, whatever Close does meanwhile.
func TestLoopCloseRace(t *testing.T) {
	for range 50 {
		l, err := New(&fakeDevice{}, 0, nil)
		require.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for l.Do(func() {}) == nil {
			}
		}()
		require.NoError(t, l.Close())
		<-done
	}
}
