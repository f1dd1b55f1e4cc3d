package rmb

import (
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// An idle connection has two regions.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[Region](t, 80)
}
