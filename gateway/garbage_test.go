package gateway

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGarbagePercent(t *testing.T) {
	require.Equal(t, 800, garbagePercent(0))
	require.Equal(t, 800, garbagePercent(4<<20))
	require.Equal(t, 100, garbagePercent(garbageFloor))
	require.Equal(t, 100, garbagePercent(1<<30))
	require.Equal(t, 100, garbagePercent(math.MaxUint64))
}
