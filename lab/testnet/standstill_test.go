package testnet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStandstills: the times without a turn are told, and others are not.
func TestStandstills(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, time.November, 23, 7, 57, 30, 0, time.UTC)
	var s standstills
	s.turns(at, at.Add(standstillLeast-1))
	s.turns(at, at.Add(2500*time.Millisecond))
	require.Equal(t, []string{"2.5s up to Nov 23 07:57:32.500"}, s.seen)
	watchStandstills().end()
}
