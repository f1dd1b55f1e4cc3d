package legs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDeathNote(t *testing.T) {
	at := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	require.Equal(t, "legs: the process smcgw-legs has ended, once since the start, at 2026-11-30T01:02:03Z last, and its spare has taken its place", deathNote(1, at))
	require.Contains(t, deathNote(2, at), "2 times since the start")
}
