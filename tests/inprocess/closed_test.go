package inprocess

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/inprocess/broker"
)

// slowNamer keeps the broker looking at a socket.
type slowNamer struct{}

func (slowNamer) Name(int) (broker.Sequences, broker.Role, bool) {
	time.Sleep(20 * time.Millisecond)
	return broker.Sequences{}, broker.RoleUnknown, false
}

// TestCloseWhileTheBrokerLooks: the broker has a duplicate of the socket then, which would withhold the end.
func TestCloseWhileTheBrokerLooks(t *testing.T) {
	program := build(t).Program("closed")
	want, err := run(nil, time.Minute, nil, program)
	require.NoError(t, err, want)
	require.Equal(t, "at once\n", want)
	w := openWorld(t, build(t).Library(), broker.Config{Namer: slowNamer{}})
	got, err := run(w, time.Minute, nil, program)
	require.NoError(t, err, got)
	require.Equal(t, want, got)
}
