package conn

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/host"
)

// TestAPanicAboutNoFlowIsNotSurvived: a callback about a tuple without a flow.
func TestAPanicAboutNoFlowIsNotSurvived(t *testing.T) {
	require.Panics(t, func() {
		d := Desk{Find: func(host.Tuple) *Flow { return nil }}
		defer d.containAbout(host.Tuple{})
		panic("test")
	})
}
