package loop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What began before the gateway stood still is late by its own fault, also right
// behind that, before anybody has noticed; what began later is not.
func TestWasLate(t *testing.T) {
	var p Pulse
	start := time.Now()
	require.False(t, p.WasLate(start, start.Add(time.Hour)), "it has not begun")
	p.Beat(start)
	require.False(t, p.WasLate(start, start.Add(StuckAfter-1)))
	require.True(t, p.WasLate(start, start.Add(StuckAfter)), "not noticed yet")
	resumed := start.Add(time.Second)
	p.Beat(resumed)
	require.True(t, p.WasLate(start, resumed))
	require.True(t, p.WasLate(resumed.Add(-1), resumed))
	require.False(t, p.WasLate(resumed, resumed.Add(StuckAfter-1)))
}
