package carrier

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rmb"
)

const smallRing = 64 << 10

// a plan is told of turns, a microsecond apart.
type turns struct {
	ringPlan
	now   time.Time
	every time.Duration
	size  int
}

func newTurns(first, most int) *turns {
	return &turns{ringPlan: ringPlan{first: int32(first), most: int32(most)}, now: time.Now(), every: time.Microsecond, size: first}
}

func (u *turns) turn(took int, spent bool) {
	u.now = u.now.Add(u.every)
	u.size = u.next(u.size, took, spent, u.now)
}

func TestRingOfABulkFlowGrowsToTheMost(t *testing.T) {
	u := newTurns(smallRing, largeRing)
	n := 0
	for ; u.size < largeRing; n++ {
		require.Less(t, n, 10_000)
		u.turn(16<<10, n%4 == 0)
	}
	require.Equal(t, largeRing, u.size)
	require.LessOrEqual(t, n*(16<<10), (passes+1)*(64<<10+256<<10+1<<20), "bytes until then")
	for range 10_000 {
		u.turn(16<<10, true)
		u.largest = int32(u.size) // no turn is lean
		require.Equal(t, largeRing, u.size, "never beyond")
	}
}

func TestRingStays(t *testing.T) {
	for name, flow := range map[string]func(*turns, int){
		"the peer has room":        func(u *turns, _ int) { u.turn(u.size/2, false) },
		"the application is slow":  func(u *turns, _ int) { u.every = hotPass; u.turn(u.size/2, true) },
		"a burst now and then":     func(u *turns, i int) { u.turn(u.size, i%5 == 0) },
		"small messages, one size": func(u *turns, _ int) { u.turn(100, false) },
	} {
		u := newTurns(smallRing, largeRing)
		for i := range 50_000 {
			flow(u, i)
			require.Equal(t, smallRing, u.size, name)
		}
	}
	u := newTurns(smallRing, smallRing)
	for range 1000 {
		u.turn(smallRing, true)
		require.Equal(t, smallRing, u.size, "fixed")
	}
}

func TestRingThatIsTooLargeShrinks(t *testing.T) {
	u := newTurns(smallRing, largeRing)
	u.size = largeRing
	bytes := 0
	for u.size > smallRing {
		require.Less(t, bytes, 2*passes*largeRing)
		u.turn(4000, false)
		bytes += 4000
	}
	require.Equal(t, smallRing, u.size)

	u.size = largeRing
	for range 1000 {
		u.turn(largeRing/leanPart+1, false)
		require.Equal(t, largeRing, u.size, "in use")
	}
}

// A flow for which there was no memory asks again, but not at every pass.
func TestRingGrowsWhenMemoryIsBack(t *testing.T) {
	u := newTurns(smallRing, largeRing)
	u.retry = u.now.Add(ringRetry)
	for range 1000 {
		u.turn(smallRing, true)
		require.Equal(t, smallRing, u.size)
	}
	u.now = u.retry
	u.turn(smallRing, true) // a pass that took long
	u.turn(smallRing, true)
	require.Equal(t, ringStep*smallRing, u.size)
}

// Rings that are asked for at the same time share what there is for growth.
func TestRingsThatGrowAtOnceLeaveHalfOfTheMemory(t *testing.T) {
	pool, err := rmb.NewPool(rmb.PoolConfig{Limit: 4 * largeRing})
	require.NoError(t, err)
	env := &Env{Pool: pool}
	require.True(t, env.mayGrow(largeRing))
	require.True(t, env.mayGrow(largeRing))
	require.False(t, env.mayGrow(largeRing))
	require.False(t, env.mayGrow(smallRing))
	env.growing.Add(-largeRing) // one of them was not to be had
	require.True(t, env.mayGrow(largeRing))
}
