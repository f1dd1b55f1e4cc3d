package conn

import (
	"testing"

	"github.com/smcgw/smcgw/lab/leak"
)

// An idle connection has these.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[Flow](t, 640-8)
	leak.SizeAtMost[carry](t, 176)
	leak.SizeAtMost[wireControl](t, 240)
	leak.SizeAtMost[appLeg](t, 16)
}
