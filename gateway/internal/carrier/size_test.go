package carrier

import (
	"testing"

	"github.com/smcgw/smcgw/lab/sizes"
)

// An idle connection has a link.
func TestIdleSizes(t *testing.T) {
	sizes.AtMost[Link](t, 320)
}
