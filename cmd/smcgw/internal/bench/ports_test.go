package bench

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortRanges(t *testing.T) {
	r := parsePorts("32768\t60999\n")
	require.Equal(t, portRange{32768, 60999}, r)
	require.Equal(t, portRange{32768, 42177}, r.part(0, 3))
	require.Equal(t, portRange{42178, 51587}, r.part(1, 3))
	require.Equal(t, portRange{51588, 60997}, r.part(2, 3))
	require.Equal(t, portRange{1, 65535}, portRange{1, 65535}.part(0, 1))
	require.Zero(t, portRange{1000, 2000}.part(0, 2))
	require.Zero(t, portRange{}.part(0, 1))
	for _, s := range []string{"", "1", "x y", "0 5", "9 5", "1 65536"} {
		require.Zero(t, parsePorts(s), s)
	}
	require.NotZero(t, systemPorts())
}

// FuzzPorts: whatever the kernel says is a range with ports in it, or none.
func FuzzPorts(f *testing.F) {
	f.Add("32768\t60999\n")
	f.Fuzz(func(t *testing.T, s string) {
		if r := parsePorts(s); r != (portRange{}) {
			require.Positive(t, r.low)
			require.GreaterOrEqual(t, r.high, r.low)
		}
	})
}

func TestDialTakesAPortOfTheRange(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln, err := net.Listen("tcp", at)
		require.NoError(t, err)
		to := netip.MustParseAddrPort(ln.Addr().String())
		r := systemPorts().part(1, 3)
		for range 8 {
			c, err := dial(t.Context(), to, r)
			require.NoError(t, err)
			local, _, err := ends(c)
			require.NoError(t, err)
			require.GreaterOrEqual(t, local.Port(), r.low)
			require.LessOrEqual(t, local.Port(), r.high)
			require.NoError(t, c.Close())
		}
		require.NoError(t, ln.Close())
	}
}
