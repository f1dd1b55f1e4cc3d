package conn

import (
	"testing"

	"github.com/smcgw/smcgw/lab/sizes"
)

// An idle connection has these.
func TestIdleSizes(t *testing.T) {
	sizes.AtMost[Flow](t, 640-8)
	sizes.AtMost[carry](t, 176)
	sizes.AtMost[wireControl](t, 240)
	sizes.AtMost[appLeg](t, 16)
}
