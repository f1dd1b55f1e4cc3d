package carrier

import (
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// An idle connection has a link.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[Link](t, 320)
}
