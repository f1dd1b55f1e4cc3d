package rmb

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRingsShrinkAsMemoryFills(t *testing.T) {
	const limit = 1 << 30
	used, flows := int64(0), 0
	for {
		n := int64(PoolStats{Limit: limit, Used: used}.RingSize())
		if used+n > limit {
			break
		}
		used += n
		flows++
	}
	require.Greater(t, flows, 9000, "flows that fit the default memory")
	require.Equal(t, 1<<20, PoolStats{Limit: limit}.RingSize())
}
