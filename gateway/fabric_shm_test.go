package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rmb"
)

func TestRingsShrinkAsMemoryFills(t *testing.T) {
	const limit = 1 << 30
	used, flows := int64(0), 0
	for {
		n := int64(ringSize(rmb.PoolStats{Limit: limit, Used: used}))
		if used+n > limit {
			break
		}
		used += n
		flows++
	}
	require.Greater(t, flows, 9000, "flows that fit the default memory")
	require.Equal(t, 1<<20, ringSize(rmb.PoolStats{Limit: limit}))
}
