package gateway

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/loop"
)

// lateLoop is a loop that is late by so much.
type lateLoop struct{ by time.Duration }

func (l *lateLoop) Late(time.Time) time.Duration { return l.by }

// TestOneStuckLoopStopsTheHeart: and its next turn starts it again.
func TestOneStuckLoopStopsTheHeart(t *testing.T) {
	steer := newFakeSteering()
	g := &gateway{steer: steer}
	bad := &lateLoop{by: loop.StuckAfter - 1}
	loops := []lagging{&lateLoop{}, bad}
	now := time.Unix(1000, 0)
	g.beatOnce(loops, now)
	require.Equal(t, 1, steer.beats)
	bad.by = loop.StuckAfter
	g.beatOnce(loops, now.Add(beatInterval))
	bad.by = time.Hour
	g.beatOnce(loops, now.Add(2*beatInterval))
	require.Equal(t, 1, steer.beats)
	require.Equal(t, now, g.pulse.Last())
	bad.by = 0
	g.beatOnce(loops, now.Add(time.Second))
	require.Equal(t, 2, steer.beats)
}
