package negotiate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

// vector returns the bytes of a golden vector.
func vector(t testing.TB, name string) []byte {
	t.Helper()
	return golden.Vector(t, name)
}

// requireTruncationFails checks that no proper prefix of b parses.
func requireTruncationFails(t *testing.T, b []byte, parse func([]byte) error) {
	t.Helper()
	for i := range b {
		require.ErrorIs(t, parse(b[:i]), ErrShort, "prefix of %d bytes", i)
	}
	require.NoError(t, parse(b))
}
