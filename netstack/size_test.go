package netstack

import (
	"testing"

	"github.com/smcgw/smcgw/lab/sizes"
)

// The wire leg of an idle connection has these.
func TestIdleSizes(t *testing.T) {
	sizes.AtMost[flow](t, 192)
	sizes.AtMost[Conn](t, 320)
	sizes.AtMost[adoption](t, 96)
}
