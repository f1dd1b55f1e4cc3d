package rmb

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRingsShrinkAsMemoryFills(t *testing.T) {
	const limit = 1 << 30
	for _, rings := range []struct {
		size func(PoolStats) int
		most int
	}{{PoolStats.RingSize, 9000}, {PoolStats.FirstRingSize, 20_000}} {
		used, flows := int64(0), 0
		for {
			n := int64(rings.size(PoolStats{Limit: limit, Used: used}))
			if used+n > limit {
				break
			}
			used += n
			flows++
		}
		require.Greater(t, flows, rings.most, "flows that fit the default memory")
	}
	require.Equal(t, 1<<20, PoolStats{Limit: limit}.RingSize())
	require.Equal(t, 256<<10, PoolStats{Limit: limit}.FirstRingSize())
}

func TestHalfOfTheMemoryIsNotForGrowth(t *testing.T) {
	const limit = 1 << 30
	require.True(t, PoolStats{Limit: limit, Used: limit/2 - 4<<20}.MayGrow(4<<20))
	require.False(t, PoolStats{Limit: limit, Used: limit/2 - 4<<20 + 1}.MayGrow(4<<20))
}
