package proof

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// An absent host has an address of its network.
func TestAbsentHostsAreInTheirNetwork(t *testing.T) {
	for _, s := range []string{"10.0.0.0/8", "10.1.2.0/24", "10.1.2.0/23", "10.1.2.4/30", "fd00::/64", "fd00::/8", "fd00::4/126"} {
		p := netip.MustParsePrefix(s)
		for n := range uint64(1000) {
			require.True(t, p.Contains(within(p, n*0x9e3779b97f4a7c15)), s)
		}
	}
	require.Equal(t, netip.MustParseAddr("10.1.2.255"), last(netip.MustParsePrefix("10.1.2.0/24")))
	require.Equal(t, netip.MustParseAddr("10.255.255.255"), last(netip.MustParsePrefix("10.0.0.0/8")))
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
