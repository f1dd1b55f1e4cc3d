package negotiate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRest(t *testing.T) {
	at := func(s float64) time.Time {
		return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second)))
	}
	var r Rest
	require.True(t, r.Over(at(0)))
	for range 1000 { // all flows of a device at once
		r = r.Failed(at(0))
	}
	require.False(t, r.Resting(at(0)))
	require.False(t, r.Over(at(0)))
	r = r.Failed(at(10)).Failed(at(11))
	require.False(t, r.Resting(at(11)))
	r = r.Failed(at(20))
	require.True(t, r.Resting(at(20)))
	require.True(t, r.Resting(at(29)))
	require.Equal(t, r, r.Failed(at(25)), "late ones of before")
	require.False(t, r.Resting(at(30)))
	r = r.Failed(at(35))
	require.True(t, r.Resting(at(54)), "the second pause is longer")
	require.False(t, r.Resting(at(55)))
	require.False(t, r.Over(at(70)))
	require.True(t, r.Over(at(75)))
	r = r.Failed(at(76))
	require.False(t, r.Resting(at(76)), "it was good for as long as it rested")

	r = Rest{}.Failed(at(0)).Failed(at(59)).Failed(at(61))
	require.False(t, r.Resting(at(61)), "two within a minute")
}

// TestRestIsBounded: whatever fails when, a carrier rests for ten minutes at most, and only after three failures.
func TestRestIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Rest
		now, counted := time.Unix(1000, 0), 0
		for range rapid.IntRange(1, 40).Draw(t, "failures") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Minute)).Draw(t, "later")))
			next := r.Failed(now)
			if next != r {
				counted++
			}
			r = next
			require.LessOrEqual(t, r.until.Sub(now), restMost)
			require.False(t, r.Resting(now) && counted < restAfter)
			require.False(t, r.Resting(now) && r.Over(now))
		}
		require.True(t, r.Over(now.Add(restWindow+2*restMost+time.Second)))
		require.False(t, r.Resting(now.Add(restMost)))
	})
}
