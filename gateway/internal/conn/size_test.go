package conn

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// An idle connection has these, so what few of them need is an object that its first use makes. The bounds are the classes
// that the allocator rounds up to, less the word it adds to what is larger than 512 bytes.
func TestIdleSizes(t *testing.T) {
	for _, s := range []struct {
		of    reflect.Type
		class uintptr
	}{
		{reflect.TypeFor[Flow](), 640 - 8},
		{reflect.TypeFor[carry](), 176},
		{reflect.TypeFor[wireControl](), 240},
		{reflect.TypeFor[appLeg](), 16},
	} {
		require.LessOrEqual(t, s.of.Size(), s.class, "%v", s.of)
	}
}
