package socket

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A deadline that is moved beside Close leaves no timer behind, which would keep the connection until then.
func TestDeadlineBehindStop(t *testing.T) {
	var d Deadline
	d.Set(time.Now().Add(time.Hour), func() {})
	d.Stop()
	d.Set(time.Now().Add(time.Hour), func() {})
	require.Nil(t, d.timer)
}
