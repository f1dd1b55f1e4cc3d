package auto

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// some are n connections of so many bytes that differ by noise, ended so many at a time.
func some(rng *rand.Rand, n, together int, perSecond, noise float64) (r rate) {
	for range n / together {
		var o rate
		for range together {
			bytes := uint64(1<<30) >> rng.IntN(4)
			o.conns, o.bytes = o.conns+1, o.bytes+bytes
			o.seconds += float64(bytes) / perSecond * math.Exp(noise*rng.NormFloat64())
		}
		r.add(o)
	}
	return r
}

// TestRaceIsFair: the deviation that a race tells is that of what it tells, also of
// connections that differ in length, and of such that end together.
func TestRaceIsFair(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, noise := range []float64{0.1, 0.25, 0.5} {
		for _, n := range []int{2, 4, 16, 60} {
			for _, together := range []int{1, 2} {
				const races = 2000
				wrong := 0.0
				for range races {
					carried, native := some(rng, n, 1, 1e9, noise), some(rng, n, together, 1e9, noise)
					if ahead, deviation := race(&carried, &native); math.Abs(ahead) > autoSure*deviation {
						wrong++
					}
				}
				t.Logf("noise %v, %d connections, %d at a time: %.1f %% of equal ones are told apart", noise, n, together, 100*wrong/races)
				if noise <= autoChance {
					require.LessOrEqual(t, wrong/races, 0.1)
				}
			}
		}
	}
}

// TestRate: the first connection is believed as far as connections differ by chance; those
// that move too little tell nothing; what is kept is bounded.
func TestRate(t *testing.T) {
	var r rate
	require.True(t, math.IsInf(r.variance(), 1))
	r.add(rate{conns: 1, bytes: autoBulk - 1, seconds: 1})
	r.add(rate{conns: 2, bytes: 2*autoBulk - 1, seconds: 1})
	r.add(rate{})
	r.add(rate{conns: 1, bytes: autoBulk})
	require.Zero(t, r)
	r.add(rate{conns: 1, bytes: 1 << 30, seconds: 2})
	require.InDelta(t, autoChance*autoChance, r.variance(), 1e-9)
	require.InDelta(t, 1<<29, r.perSecond(), 1e-3)
	require.InDelta(t, 1, r.looks(), 1e-9)
	before := r.variance()
	r.add(rate{conns: 1, bytes: 1 << 20, seconds: 0.002})
	require.InDelta(t, before, r.variance(), before/100, "a small one adds little")
	for range 1000 {
		r.add(rate{conns: 1, bytes: 1 << 30, seconds: 2})
		require.LessOrEqual(t, r.looks(), float64(autoKept+1))
	}
	require.InDelta(t, 1<<29, r.perSecond(), 1<<20)
	require.Less(t, r.variance(), 1e-4)
}
