package process

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGarbagePercent(t *testing.T) {
	require.Equal(t, 800, garbagePercent(0))
	require.Equal(t, 800, garbagePercent(4<<20))
	require.Equal(t, 100, garbagePercent(garbageFloor))
	require.Equal(t, 100, garbagePercent(1<<30))
	require.Equal(t, 100, garbagePercent(math.MaxUint64))
}

func TestMemoryIsGivenBack(t *testing.T) {
	var g Garbage
	now := time.Unix(1000, 0)
	require.False(t, g.Due(garbageFloor-1, now))
	require.True(t, g.Due(garbageFloor, now))
	require.False(t, g.Due(garbageFloor+1, now), "nothing since")
	require.False(t, g.Due(3*garbageFloor, now.Add(freePause-1)), "too often")
	require.True(t, g.Due(3*garbageFloor, now.Add(freePause)))
	require.False(t, g.Due(3*garbageFloor, now.Add(9*freePause)))
}
