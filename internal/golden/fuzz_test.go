package golden

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// failing keeps what a test has failed with first.
type failing struct {
	testing.TB
	with string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	if f.with == "" {
		f.with = fmt.Sprintf(format, args...)
	}
}

// TestRoundTrip: what is lost or refused on the way is found, and what is skipped may be.
func TestRoundTrip(t *testing.T) {
	short := errors.New("short")
	parse := func(b []byte) ([2]byte, error) {
		if len(b) < 2 {
			return [2]byte{}, short
		}
		return [2]byte(b), nil
	}
	var f failing
	v, encoded, ok := RoundTrip(&f, []byte{1, 2, 3}, parse, func(v [2]byte) []byte { return v[:] })
	require.True(t, ok)
	require.Equal(t, [2]byte{1, 2}, v)
	require.Equal(t, []byte{1, 2}, encoded)
	_, _, ok = RoundTrip(&f, []byte{1}, parse, func([2]byte) []byte { panic("nothing to encode") })
	require.False(t, ok)
	require.Empty(t, f.with)

	RoundTrip(&f, []byte{1, 2}, parse, func(v [2]byte) []byte { return []byte{v[0], 0} })
	require.Contains(t, f.with, "which is read as [1 0]")
	f.with = ""
	RoundTrip(&f, []byte{1, 2}, parse, func(v [2]byte) []byte { return v[:1] })
	require.Contains(t, f.with, "which is refused: short")
}
