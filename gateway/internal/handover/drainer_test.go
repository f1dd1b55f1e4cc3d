package handover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDrainer: it is over with the last connection, or at the earliest deadline.
func TestDrainer(t *testing.T) {
	now := time.Unix(1000, 0)
	d := NewDrainer()
	require.False(t, d.Draining())
	require.Nil(t, d.Info())
	d.Begin(3, now, now.Add(time.Minute))
	require.True(t, d.Draining())
	require.Equal(t, 60.0, d.Info().RemainingSeconds)
	require.False(t, d.note(2, 0, now.Add(time.Second)))
	require.False(t, d.note(0, 1, now.Add(time.Second)), "a socket lingers")
	require.True(t, d.note(0, 0, now.Add(time.Second)))
	require.True(t, d.Info().Done)

	d.Begin(0, now, now.Add(time.Hour))
	require.False(t, d.note(1, 0, now.Add(59*time.Second)))
	require.True(t, d.note(1, 0, now.Add(time.Minute)), "the earlier deadline holds")
	d.Begin(0, now, now.Add(time.Second))
	require.True(t, d.note(1, 0, now.Add(time.Second)))
	require.Equal(t, 1, d.Info().Flows)
	d.Finish()
	<-d.Finished()
}

// TestDrainerAwaits: it looks until nothing is left.
func TestDrainerAwaits(t *testing.T) {
	d := NewDrainer()
	d.Begin(1, time.Now(), time.Now().Add(time.Hour))
	left := 3
	require.True(t, d.Await(t.Context(), func() (int, int, time.Time) { left--; return left, 0, time.Now() }))
	require.Zero(t, left)
}
