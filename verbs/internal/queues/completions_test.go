package queues

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// The queue is a list with a bound: whatever its ring does, completions come out
// once and in order.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 64
		depth := rapid.IntRange(1, most).Draw(t, "depth")
		q, err := NewCompletions(depth, most)
		require.NoError(t, err)
		var held []uint64
		retired, mostRetired := uint64(3), uint64(3) // more than the first completions say
		next := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				require.Equal(t, len(held) == 0, q.Empty())
				require.Equal(t, len(held) >= depth, q.Full())
				require.LessOrEqual(t, len(q.ring), 2*most)
			},
			"push": func(t *rapid.T) {
				if q.Full() {
					t.Skip("full")
				}
				q.Push(&Completion{WC: verbs.WC{WRID: next}, Retired: &retired, Retire: next + 1})
				held, next = append(held, next), next+1
			},
			"poll": func(t *rapid.T) {
				n := rapid.IntRange(0, 8).Draw(t, "most")
				wcs := make([]verbs.WC, n)
				got := q.Poll(wcs)
				require.Equal(t, min(n, len(held)), got)
				for i, id := range held[:got] {
					require.Equal(t, id, wcs[i].WRID)
					require.Equal(t, max(mostRetired, held[got-1]+1), retired)
				}
				mostRetired = retired
				held = held[got:]
			},
		})
	})
}

func TestQueueClosed(t *testing.T) {
	_, err := NewCompletions(0, 8)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = NewCompletions(9, 8)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	q, err := NewCompletions(8, 8)
	require.NoError(t, err)
	q.Push(&Completion{})
	q.Close()
	require.True(t, q.Closed())
	require.True(t, q.Empty())
}
