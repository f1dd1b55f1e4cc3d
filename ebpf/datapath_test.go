package ebpf

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A plain peer: the option is on the SYN and is not answered, the connection is
// native and nothing remains.
func TestPlainPeer(t *testing.T) {
	t.Parallel()
	h1, h2 := newPair(t)
	h2.echo("6379")
	d := h1.open(config(accelerate(6379)))
	for _, addr := range []string{"10.77.0.2:6379", "[fd77::2]:6379"} {
		c, err := h1.connect(addr, patience)
		require.NoError(t, err)
		exchange(t, c)
		_, err = d.Flow(tupleOf(c))
		require.ErrorIs(t, err, ErrNoFlow)
		require.NoError(t, c.Close())
	}
	c, err := d.Counters()
	require.NoError(t, err)
	t.Logf("%+v", c)
	require.EqualValues(t, 2, c.Stats["offered"])
	require.EqualValues(t, 2, c.Native[SideClient][ReasonPeerNoOption])
}
