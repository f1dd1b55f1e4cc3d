package segment

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Another host has the peer's place when enough of its answers came over the time and none of the peer did.
func TestStrangeACKs(t *testing.T) {
	const every = 2 * time.Second
	var a StrangeACKs
	gone, ask := a.Strange(time.Second, every)
	require.False(t, gone)
	require.True(t, ask, "the first asks")
	for range 10 {
		gone, ask = a.Strange(time.Second, every)
		require.False(t, gone, "too soon")
		require.False(t, ask, "asked just now")
	}
	_, ask = a.Strange(time.Second+every, every)
	require.True(t, ask)
	a.Heard()
	require.Zero(t, a.Count())
	gone, ask = a.Strange(time.Second+every, every)
	require.False(t, gone)
	require.False(t, ask, "it was there just now")
	require.Zero(t, a.Count())

	begun := time.Minute
	for i := range strangeMost - 1 {
		gone, _ = a.Strange(begun+time.Duration(i), every)
		require.False(t, gone, "too few")
	}
	gone, _ = a.Strange(begun+StrangeTime-1, every)
	require.False(t, gone, "too soon")
	gone, _ = a.Strange(begun+StrangeTime, every)
	require.True(t, gone)
}
