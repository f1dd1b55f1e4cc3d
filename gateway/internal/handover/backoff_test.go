package handover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Attempts that fail are spaced, and tell each error once.
func TestBackoff(t *testing.T) {
	var b Backoff
	now := time.Now()
	require.True(t, b.Over(now))
	require.True(t, b.Note(errNoFile, now))
	require.False(t, b.Over(now.Add(leastBackoff-1)))
	now = now.Add(leastBackoff)
	require.True(t, b.Over(now))
	require.False(t, b.Note(errNoFile, now))
	require.False(t, b.Over(now.Add(2*leastBackoff-1)))
	for range 20 {
		require.False(t, b.Note(errNoFile, now))
	}
	require.True(t, b.Over(now.Add(mostBackoff)))
	require.True(t, b.Note(errNoProgram, now))
	require.False(t, b.Note(nil, now))
	require.True(t, b.Over(now))
}
