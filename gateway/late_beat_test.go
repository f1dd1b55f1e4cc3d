package gateway

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What began before the gateway stood still is late by its own fault, also right
// behind that, before anybody has noticed; what began later is not.
func TestWasLate(t *testing.T) {
	g := &gateway{steer: newFakeSteering()}
	start := time.Now()
	require.False(t, g.wasLate(start, start.Add(time.Hour)), "it has not begun")
	g.beatOnce(nil, start)
	require.False(t, g.wasLate(start, start.Add(stuckAfter-1)))
	require.True(t, g.wasLate(start, start.Add(stuckAfter)), "not noticed yet")
	resumed := start.Add(time.Second)
	g.beatOnce(nil, resumed)
	require.True(t, g.wasLate(start, resumed))
	require.True(t, g.wasLate(resumed.Add(-1), resumed))
	require.False(t, g.wasLate(resumed, resumed.Add(stuckAfter-1)))
}
