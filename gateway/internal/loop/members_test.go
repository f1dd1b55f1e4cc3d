package loop

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAPanicOfNobodyIsNotSurvived: a shard without an owner for its work does
// not go on after a panic.
func TestAPanicOfNobodyIsNotSurvived(t *testing.T) {
	var log strings.Builder
	s, err := New(3, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	defer s.CloseFDs()
	require.PanicsWithValue(t, "test", func() { s.call([]func(){func() { panic("test") }}, 0) })
	require.Contains(t, log.String(), "shard=3")
	require.Contains(t, log.String(), "members_test.go")
}
