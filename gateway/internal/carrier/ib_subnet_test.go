package carrier

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKernelSubnets: a host without InfiniBand has no such port, and no path.
func TestKernelSubnets(t *testing.T) {
	var host subnet = kernelSubnets{}
	ibGID, err := host.gidOf(1)
	require.NoError(t, err)
	require.Zero(t, ibGID, "the loopback device")
	_, err = host.resolve(t.Context(), ibHere, ibThere)
	require.Error(t, err)
}
