package inprocess

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/broker"
)

// TestAnotherBroker checks that connections promoted by a second broker wake the loop of a process that has met an
// earlier broker, and that connections promoted by the earlier broker still do. The second broker knows their sides.
func TestAnotherBroker(t *testing.T) {
	program := shared.For(t).Program("another")
	want, err := run(nil, time.Minute, nil, program)
	require.NoError(t, err, want)
	require.Equal(t, "late: 0\n", want)
	c := broker.Config{Thresholds: broker.Thresholds{Calls: 1}}
	w := openWorld(t, shared.For(t).Library(), c)
	replaced := make(chan struct{})
	go func() {
		defer close(replaced)
		assert.Eventually(t, func() bool { return w.Counters().Promoted > 0 }, 30*time.Second, time.Millisecond)
		assert.NoError(t, w.Replace(c))
		assert.Eventually(t, func() bool {
			sides := map[broker.Role]bool{}
			for _, e := range w.Snapshot().Ends {
				sides[e.Socket.Role] = sides[e.Socket.Role] || e.ID != 0 && e.Since.IsZero()
			}
			return sides[broker.RoleClient] && sides[broker.RoleServer]
		}, 30*time.Second, time.Millisecond, "both sides of a connection of the earlier broker")
	}()
	got, err := run(w, time.Minute, nil, program)
	<-replaced
	require.NoError(t, err, got)
	require.Equal(t, want, got)
	require.NotZero(t, w.Counters().Promoted)
}
