package netstack

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// The wire leg of an idle connection has these, so what few of them need is an object that its first use makes. The bounds
// are classes that the allocator rounds up to.
func TestIdleSizes(t *testing.T) {
	for _, s := range []struct {
		of    reflect.Type
		class uintptr
	}{
		{reflect.TypeFor[flow](), 192},
		{reflect.TypeFor[Conn](), 320},
		{reflect.TypeFor[adoption](), 96},
	} {
		require.LessOrEqual(t, s.of.Size(), s.class, "%v", s.of)
	}
}
