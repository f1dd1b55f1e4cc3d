package rsocket

import (
	"testing"

	"github.com/smcgw/smcgw/lab/sizes"
)

// An idle connection has these.
func TestIdleSizes(t *testing.T) {
	sizes.AtMost[Endpoint](t, 240)
	sizes.AtMost[Stream](t, 576-8)
}
