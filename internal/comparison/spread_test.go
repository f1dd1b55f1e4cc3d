package comparison

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

var nan = math.NaN()

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   Spread
	}{
		{"one round", []float64{3}, Spread{3, 3, 3, 1}},
		{"odd", []float64{5, 1, 3}, Spread{3, 1, 5, 3}},
		{"even", []float64{4, 1, 2, 8}, Spread{3, 1, 8, 4}},
		{"a round failed", []float64{nan, 2, 4}, Spread{3, 2, 4, 2}},
		{"endless", []float64{math.Inf(1), 2}, Spread{2, 2, 2, 1}},
		{"huge", []float64{math.MaxFloat64, math.MaxFloat64}, Spread{math.MaxFloat64, math.MaxFloat64, math.MaxFloat64, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, Series{Values: c.values}.Spread())
		})
	}
	for _, none := range [][]float64{nil, {}, {nan, nan}} {
		s := Series{Values: none}.Spread()
		require.Zero(t, s.N)
		require.True(t, math.IsNaN(s.Median) && math.IsNaN(s.Min) && math.IsNaN(s.Max))
	}
}

func TestSpreadLeavesTheRoundsAlone(t *testing.T) {
	s := Series{Values: []float64{3, nan, 1}}
	s.Spread()
	require.Equal(t, 3.0, s.Values[0])
	require.Equal(t, 1.0, s.Values[2])
}

func TestRatioPairsRounds(t *testing.T) {
	r := &Report{Series: []Series{
		{Work: "bulk", Variant: TCP, Values: []float64{10, 100, nan, 0, 50}},
		{Work: "bulk", Variant: "shm", Values: []float64{20, 100, 7, 7}},
		{Work: "bulk", Variant: "soft", Values: []float64{nan, nan}},
		{Work: "other", Variant: "shm", Values: []float64{1}},
	}}
	got, ok := r.Ratio("bulk", "shm", TCP)
	require.True(t, ok)
	require.Equal(t, Spread{1.5, 1, 2, 2}, got)

	for _, c := range [][3]string{{"bulk", "soft", TCP}, {"bulk", "hw", TCP}, {"bulk", "shm", "chain1"}, {"other", "shm", TCP}, {"none", "shm", TCP}} {
		got, ok := r.Ratio(c[0], c[1], c[2])
		require.False(t, ok, c)
		require.Zero(t, got.N)
		require.True(t, math.IsNaN(got.Median))
	}
}
