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

// fuzzMessage checks that a message which is read survives being written, and that
// no more bytes are taken than there are, and all that were written.
func fuzzMessage[T any](f *testing.F, parse func([]byte) (T, int, error), encode func(T) []byte) {
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		_, encoded, ok := golden.RoundTrip(t, b, func(b []byte) (v T, err error) {
			v, n, err = parse(b)
			require.LessOrEqual(t, n, len(b))
			return v, err
		}, encode)
		if ok {
			require.Len(t, encoded, n)
		}
	})
}
