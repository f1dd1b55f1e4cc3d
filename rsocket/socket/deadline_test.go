package socket

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A deadline that is moved beside Close leaves no timer behind, which would keep the connection until then.
func TestDeadlineBehindStop(t *testing.T) {
	var d deadline
	d.set(time.Now().Add(time.Hour), func() {})
	d.stop()
	d.set(time.Now().Add(time.Hour), func() {})
	require.Nil(t, d.timer)
}
