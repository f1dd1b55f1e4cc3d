package loop

import (
	"log/slog"
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
