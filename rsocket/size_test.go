package rsocket

import (
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// An idle connection has these.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[Endpoint](t, 240)
	leak.SizeAtMost[Stream](t, 576-8)
}
