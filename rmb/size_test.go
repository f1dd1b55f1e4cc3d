package rmb

import (
	"testing"

	"github.com/smcgw/smcgw/lab/sizes"
)

// An idle connection has two regions.
func TestIdleSizes(t *testing.T) {
	sizes.AtMost[Region](t, 80)
}
