package netstack

import (
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// The wire leg of an idle connection has these.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[flow](t, 192)
	leak.SizeAtMost[Conn](t, 320)
	leak.SizeAtMost[adoption](t, 96)
}
