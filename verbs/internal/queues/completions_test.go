package queues

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// stub stands for the CQ that a notification names.
type stub struct{ verbs.CQ }

// told takes what the channel has been notified of, without waiting.
func told(ch *verbs.CompChannel) (verbs.CQ, bool) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cq, err := ch.Get(ctx)
	return cq, err == nil
}

// The queue is a list with a bound: whatever its ring does, completions come out
// once and in order, and an armed queue tells of the first that it waits for.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 64
		ch := verbs.NewCompChannel()
		depth := rapid.IntRange(1, most).Draw(t, "depth")
		q, err := NewCompletions(depth, most, ch)
		require.NoError(t, err)
		cq := &stub{}
		var held []uint64
		retired, mostRetired := uint64(3), uint64(3) // more than the first completions say
		next, waits, anyOne := uint64(0), false, false
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
				solicited, failed := rapid.Bool().Draw(t, "solicited"), rapid.Bool().Draw(t, "failed")
				wc := verbs.WC{WRID: next}
				if failed {
					wc.Status = verbs.WCWRFlushErr
				}
				q.Push(&Completion{WC: wc, Retired: &retired, Retire: next + 1}, solicited, cq)
				held, next = append(held, next), next+1
				if waits && (anyOne || solicited || failed) {
					got, ok := told(ch)
					require.True(t, ok, "a notification")
					require.Same(t, cq, got)
					waits = false
				}
				_, ok := told(ch)
				require.False(t, ok, "another notification")
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
			"arm": func(t *rapid.T) {
				solicited := rapid.Bool().Draw(t, "solicited only")
				require.NoError(t, q.ReqNotify(solicited))
				anyOne = !solicited || waits && anyOne
				waits = true
			},
			"resize": func(t *rapid.T) {
				to := rapid.IntRange(-1, most+1).Draw(t, "depth")
				if to < 1 || to > most || to < len(held) {
					require.ErrorIs(t, q.Resize(to), verbs.ErrInvalid)
					return
				}
				require.NoError(t, q.Resize(to))
				depth = to
			},
		})
	})
}

func TestQueueClosed(t *testing.T) {
	_, err := NewCompletions(0, 8, nil)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = NewCompletions(9, 8, nil)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	q, err := NewCompletions(8, 8, nil)
	require.NoError(t, err)
	require.ErrorIs(t, q.ReqNotify(false), verbs.ErrInvalid, "nobody to tell")
	q.Push(&Completion{}, false, nil)
	q.Close()
	require.True(t, q.Closed())
	require.True(t, q.Empty())
	require.ErrorIs(t, q.ReqNotify(false), verbs.ErrClosed)
	require.ErrorIs(t, q.Resize(4), verbs.ErrClosed)
}
