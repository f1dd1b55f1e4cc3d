package ebpf

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A reset shows no way: a kernel sends it for a socket that has gone, without its mark.
func TestResetShowsNoWay(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	c := newCellHost(t)
	for _, addrs := range cellAddrs {
		k, err := Tuple{Local: addrs[0], Remote: addrs[1]}.key()
		require.NoError(t, err)
		for class, want := range map[string]uint64{"OUT_SEGMENT": cellValue(0), "NET_RESET": cellValue(cellMark)} {
			c.enterCell(k, "OUT_SEGMENT", int(StateCarrying))
			c.do(func() {
				require.Equal(t, "legs", c.run("OUT_SEGMENT", addrs[0], addrs[1], cellPacket(t, class, addrs[0], addrs[1])))
			})
			var got smcgwFlow
			require.NoError(t, c.d.objs.Flows.Lookup(k, &got))
			require.Equal(t, want, got.Mark, class)
		}
	}
}
