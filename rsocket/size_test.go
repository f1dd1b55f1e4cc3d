package rsocket

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// An idle connection has these, so what is rare in them is an object that its first use makes. The bounds are the classes
// that the allocator rounds up to, less the word it adds to what is larger than 512 bytes.
func TestIdleSizes(t *testing.T) {
	for _, s := range []struct {
		of    any
		class uintptr
	}{
		{Endpoint{}, 240},
		{Stream{}, 576 - 8},
	} {
		require.LessOrEqual(t, reflect.TypeOf(s.of).Size(), s.class, "%T", s.of)
	}
}
