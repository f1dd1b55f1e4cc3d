package socket

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// A read of no bytes succeeds until the connection is closed.
func TestReadNothing(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		n, err := a.Read(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, a.Close())
		_, err = a.Read(nil)
		require.ErrorIs(t, err, net.ErrClosed)
		require.NoError(t, b.Close())
	})
}
