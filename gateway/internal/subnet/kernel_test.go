package subnet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKernel: a host without InfiniBand has no such port, and no path.
func TestKernel(t *testing.T) {
	var host Host = Kernel{}
	gid, err := host.GIDOf(1)
	require.NoError(t, err)
	require.Zero(t, gid, "the loopback device")
	_, err = host.Path(t.Context(), here, there)
	require.Error(t, err)
}
