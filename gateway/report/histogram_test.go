package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHistogram(t *testing.T) {
	h := NewSetupHistogram()
	for _, d := range []time.Duration{-1, 0, 50 * time.Microsecond, 51 * time.Microsecond, time.Second, time.Hour} {
		h.Observe(d)
	}
	s := h.Snapshot()
	require.EqualValues(t, 6, s.Count)
	require.EqualValues(t, 3, s.Buckets[50e-6])
	require.EqualValues(t, 4, s.Buckets[100e-6])
	require.EqualValues(t, 5, s.Buckets[2])
	require.InDelta(t, 3601.0001, s.Sum, 0.001)
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Observe(time.Millisecond) }))
}
