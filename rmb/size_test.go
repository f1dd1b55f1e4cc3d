package rmb

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// An idle connection has two regions. The bound is a class that the allocator rounds up to.
func TestIdleSizes(t *testing.T) {
	require.LessOrEqual(t, reflect.TypeFor[Region]().Size(), uintptr(80))
}
