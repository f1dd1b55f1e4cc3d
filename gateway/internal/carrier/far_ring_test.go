package carrier

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// Reads of a flow over a network fill the grants of its ring, and the last packet
// of each has room for the immediate within a path MTU.
func TestFarReadsFillGrantsAndTrains(t *testing.T) {
	t.Parallel()
	const parts, immediate = 8, 4 // of the ring that are granted by themselves; bytes
	require.Zero(t, farRing%parts)
	require.Zero(t, farReadCap%(farRing/parts))
	require.Zero(t, farRing%farReadCap)
	for _, mtu := range []verbs.MTU{verbs.MTU512, verbs.MTU1024, verbs.MTU2048, verbs.MTU4096} {
		last := farReadCap % mtu.Bytes()
		require.Positive(t, last)
		require.LessOrEqual(t, last+immediate, mtu.Bytes())
	}
}
