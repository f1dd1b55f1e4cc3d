package demo

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/testnet"
)

// A line is as expected if connections were promoted, and not if they could not be.
func TestCompareInProcess(t *testing.T) {
	testnet.Require(t, "redis-server", "redis-benchmark")
	s := &processShow{Options: Options{Out: t.Output(), Executable: testnet.Program(t), Rounds: 1}, ctx: t.Context(), dir: t.TempDir()}
	w := redisPair("redis GET", "-c", "5", "-n", "50000")
	t.Setenv("SMCGW_LIBRARY", testnet.Library(t))
	l, err := s.compare(w)
	require.NoError(t, err)
	require.True(t, l.ok, l.note)
	require.Regexp(t, `^5 connections promoted, [0-9]+\.[0-9] MB by shared memory$`, l.note)
	require.Positive(t, l.direct[0])
	require.Positive(t, l.carried[0])

	t.Setenv("SMCGW_LIBRARY", "/nonexistent")
	l, err = s.compare(w)
	require.NoError(t, err)
	require.False(t, l.ok)
	require.Contains(t, l.note, "/nonexistent")
}
