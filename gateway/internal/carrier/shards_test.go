package carrier

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/verbs/hw"
	"github.com/smcgw/smcgw/verbs/shm"
	"github.com/smcgw/smcgw/verbs/soft"
)

// A device has a vector for each shard. On no host, and with no configuration, are there
// more shards than a device has room for: it would be left out.
func TestDevicesServeAllShards(t *testing.T) {
	for _, processors := range []int{1, 2, 33, 64, 192, 4096} {
		for _, configured := range []int{0, 1, config.MaxShards} {
			n := config.Config{Shards: configured}.Loops(processors)
			require.Positive(t, n)
			require.NoError(t, shm.Config{GatewayID: [16]byte{1}, Vectors: n}.Validate())
			require.NoError(t, soft.Config{Addrs: []netip.Addr{addrA}, Vectors: n}.Validate())
			require.NoError(t, hw.Config{Adapter: "mlx5_0", Vectors: n}.Validate())
		}
	}
}
