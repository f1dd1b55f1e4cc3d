package segment

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/packet"
)

func arrived(seq, end uint32) Arrived { return Arrived{Seq: seq, End: end, Cost: 1000} }

// Segments in order cost a relay nothing, however far the endpoint is behind; behind a gap each costs what it holds,
// until everything up to it was acknowledged.
func TestAheadRelay(t *testing.T) {
	var b Budget
	var q Ahead
	acked := uint32(math.MaxUint32 - 1000) // sequence numbers go round
	for i := range uint32(10) {
		require.True(t, q.Take(&b, arrived(acked+i*500, acked+i*500+500), acked, true))
	}
	require.Zero(t, b.Used())
	at := acked + 6000 // a gap of 1000
	for i := range uint32(4) {
		require.True(t, q.Take(&b, arrived(at+i*500, at+i*500+500), acked, true))
	}
	require.EqualValues(t, 4000, b.Used())
	require.True(t, q.Take(&b, arrived(at, at+1), acked, true), "once more")
	require.EqualValues(t, 5000, b.Used())
	q.Acked(&b, at-1000, true)
	require.EqualValues(t, 5000, b.Used())
	q.Acked(&b, at+2000, false)
	require.Zero(t, b.Used())
	require.True(t, q.Take(&b, arrived(at+2000, at+2500), at+2000, true))
	require.True(t, q.Take(&b, arrived(at+2500, at+3000), at+2000, true))
	require.Zero(t, b.Used(), "it is in order again")
	q.Acked(&b, at+2000, true)
	require.True(t, q.Take(&b, arrived(at+3000, at+3500), at+2000, true))
	require.EqualValues(t, 1000, b.Used(), "the endpoint has dropped one")
	q.End(&b)
	require.Zero(t, b.Used())
	require.False(t, q.Take(&b, arrived(at+9000, at+9500), at+2000, true))
	q.End(&b)
	require.Zero(t, b.Used())
}

// What no endpoint keeps, since no window is as large, changes nothing.
func TestAheadFar(t *testing.T) {
	for _, away := range []uint32{farthest, 1<<31 - 1, 1 << 31, math.MaxUint32 - farthest} {
		var b Budget
		var q Ahead
		require.True(t, q.Take(&b, arrived(100, 200), 100, true))
		require.True(t, q.Take(&b, arrived(100+away, 200+away), 100, true))
		require.True(t, q.Take(&b, arrived(200, 300), 100, true))
		require.Zero(t, b.Used())
	}
}

// One flow has its part, and those without a relay together half of all.
func TestAheadBounds(t *testing.T) {
	var b Budget
	flood := func(relays bool) (q *Ahead, taken int64) {
		q = new(Ahead)
		for q.Take(&b, arrived(2, 3), 1, relays) {
			taken += 1000
		}
		require.True(t, q.Take(&b, arrived(1, 2), 1, relays), "what fills the gap is always taken")
		return q, taken
	}
	all := []*Ahead{}
	for b.Used() < HeldTotal/2-1000 {
		q, taken := flood(false)
		require.LessOrEqual(t, taken, int64(HeldLeg))
		all = append(all, q)
	}
	_, taken := flood(false)
	require.Zero(t, taken)
	for b.Used() < HeldTotal-1000 {
		q, taken := flood(true)
		require.LessOrEqual(t, taken, int64(HeldTotal/4))
		all = append(all, q)
	}
	require.LessOrEqual(t, b.Used(), int64(HeldTotal))
	for _, q := range all {
		q.End(&b)
	}
	require.Zero(t, b.Used())
}

// What a receiver keeps behind a gap is counted, whatever comes in whatever order, and nothing is counted when it keeps
// nothing.
func TestAheadCountsWhatIsKept(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var b Budget
		var q Ahead
		relays := rapid.Bool().Draw(r, "relays")
		begin := rapid.SampledFrom([]uint32{0, 1, 1 << 31, math.MaxUint32 - 50}).Draw(r, "begin")
		next, acked := begin, begin
		var queued, kept []Arrived
		receive := func() {
			kept, queued = append(kept, queued[0]), queued[1:]
			for again := true; again; {
				again = false
				for i, g := range kept {
					if packet.After(g.Seq, next) {
						continue
					}
					if packet.After(g.End, next) {
						next = g.End
					}
					kept, again = append(kept[:i:i], kept[i+1:]...), true
					break
				}
			}
			acked = next
			q.Acked(&b, acked, len(kept) > 0)
		}
		for range rapid.IntRange(1, 200).Draw(r, "steps") {
			if len(queued) > 0 && rapid.Bool().Draw(r, "receive") {
				receive()
			} else {
				from := acked + uint32(rapid.IntRange(0, 20).Draw(r, "ahead")) - 5
				g := arrived(from, from+uint32(rapid.IntRange(1, 5).Draw(r, "bytes")))
				require.True(r, q.Take(&b, g, acked, relays))
				queued = append(queued, g)
			}
			require.GreaterOrEqual(r, b.Used(), int64(1000*len(kept)))
		}
		for len(queued) > 0 {
			receive()
		}
		g := Arrived{Seq: acked, End: acked + 100}
		require.True(r, q.Take(&b, g, acked, relays))
		queued = append(queued, g)
		receive()
		require.Empty(r, kept)
		require.Zero(r, b.Used())
	})
}
