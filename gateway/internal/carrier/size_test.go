package carrier

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// An idle connection has a link. The bound is a class that the allocator rounds up to.
func TestIdleSizes(t *testing.T) {
	require.LessOrEqual(t, reflect.TypeFor[Link]().Size(), uintptr(320))
}
