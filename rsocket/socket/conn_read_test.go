package socket

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// claimer is a writer that claims another length than it was given.
type claimer int

func (c claimer) Write(p []byte) (int, error) { return len(p) + int(c), nil }

// A writer that claims more than it was given, or less than nothing, ends WriteTo, and what was received stays.
func TestWriteToInvalidWriter(t *testing.T) {
	each(t, func(t *testing.T, d *duo) {
		a, b := d.pair(ConnConfig{})
		soon(t, a, b)
		_, err := b.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, b.CloseWrite())
		for _, w := range []claimer{1 << 21, 1, -2} {
			n, err := a.WriteTo(w)
			require.ErrorIs(t, err, errInvalidWrite)
			require.Zero(t, n)
		}
		got, err := io.ReadAll(a)
		require.NoError(t, err)
		require.Equal(t, "x", string(got))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

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
