package loop

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lateLoop is a loop that is late by so much.
type lateLoop struct{ by time.Duration }

func (l *lateLoop) Late(time.Time) time.Duration { return l.by }
func (l *lateLoop) relieve(time.Time)            {}

// TestOneStuckLoopStopsTheHeart: and its next turn starts it again.
func TestOneStuckLoopStopsTheHeart(t *testing.T) {
	beats := 0
	h := &Heart{Write: func() error { beats++; return nil }, Pulse: new(Pulse)}
	bad := &lateLoop{by: StuckAfter - 1}
	h.loops.Store(&[]lagging{&lateLoop{}, bad})
	now := time.Unix(1000, 0)
	h.Beat(now)
	require.Equal(t, 1, beats)
	bad.by = StuckAfter
	h.Beat(now.Add(BeatInterval))
	bad.by = time.Hour
	h.Beat(now.Add(2 * BeatInterval))
	require.Equal(t, 1, beats)
	require.Equal(t, now, h.Pulse.Last())
	bad.by = 0
	h.Beat(now.Add(time.Second))
	require.Equal(t, 2, beats)
}

// TestHaltedLoopsAreNotLate: a gateway whose loops have ended, and which closes its devices, lives.
func TestHaltedLoopsAreNotLate(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.Start()
	s.Call(func() {})
	s.Halt()
	defer s.CloseFDs()
	require.Zero(t, s.Late(time.Now().Add(time.Minute)))
}

// What began before the gateway stood still is late by its own fault, also right
// after that, before the gateway has noticed; what began later is not.
func TestWasLate(t *testing.T) {
	const long = time.Minute
	var p Pulse
	start := time.Now()
	require.False(t, p.WasLate(start, start.Add(time.Hour), long), "it has not begun")
	p.Beat(start)
	require.False(t, p.WasLate(start, start.Add(StuckAfter-1), long))
	require.True(t, p.WasLate(start, start.Add(StuckAfter), long), "not noticed yet")
	resumed := start.Add(time.Second)
	p.Beat(resumed)
	require.True(t, p.WasLate(start, resumed, long))
	require.True(t, p.WasLate(resumed.Add(-1), resumed, long))
	require.False(t, p.WasLate(resumed, resumed.Add(StuckAfter-1), long))
}

// A gateway that was late by a part of what was waited for cannot tell whose time has
// passed; by how much depends on the wait, and what was over before it does not count.
func TestWasLateForTheWait(t *testing.T) {
	var p Pulse
	start := time.Now()
	p.Beat(start)
	for at := start; at.Before(start.Add(time.Second)); at = at.Add(BeatInterval) {
		p.Beat(at)
	}
	now := start.Add(time.Second)
	p.Beat(now)
	require.False(t, p.WasLate(start, now, 200*time.Millisecond), "every beat in time")
	p.Late(now, 50*time.Millisecond)
	require.True(t, p.WasLate(start, now, 200*time.Millisecond))
	require.False(t, p.WasLate(start, now, 201*time.Millisecond), "long enough for the peer")
	require.True(t, p.WasLate(start, now, 20*time.Millisecond))
	later := now.Add(delayPeriod)
	p.Beat(later)
	require.False(t, p.WasLate(later, later, 1200*time.Millisecond), "begun later")

	slow := later.Add(2 * BeatInterval)
	require.True(t, p.WasLate(later, slow, 4*BeatInterval), "a beat that is due and has not come")
	p.Beat(slow)
	require.True(t, p.WasLate(later, slow, 4*BeatInterval), "one that came late")
	for i := range delays { // as long as is kept, and no longer
		require.True(t, p.WasLate(later, slow.Add(BeatInterval), 4*BeatInterval), i)
		slow = slow.Add(delayPeriod)
		p.beat.Store(slow)
		p.Late(slow, time.Microsecond)
	}
	require.False(t, p.WasLate(later, slow, 4*BeatInterval))
}

func TestPulseIsShared(t *testing.T) {
	var p Pulse
	var all sync.WaitGroup
	now := time.Now()
	for i := range 4 {
		all.Go(func() {
			for k := range 1000 {
				p.Late(now.Add(time.Duration(k)*time.Millisecond), time.Duration(i+1)*time.Millisecond)
				p.WasLate(now, now, time.Second)
			}
		})
	}
	all.Wait()
	require.True(t, p.WasLate(now, now.Add(time.Second), 16*time.Millisecond))
	require.False(t, p.WasLate(now, now.Add(time.Second), 17*time.Millisecond))
}
