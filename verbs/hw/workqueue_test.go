package hw

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// A ring is a list of ids: completions come in order, some are left out, and
// each frees all before it. The counters run over 2^32 on the way.
func TestRingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		var w workQueue
		w.init(limit)
		start := rapid.SampledFrom([]uint32{0, 1<<32 - 3, 1<<31 - 2}).Draw(t, "start")
		w.posted, w.done = start, start
		type request struct {
			id    uint64
			entry uint32
		}
		var held []request
		next := uint64(100)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				require.Equal(t, len(held), w.used())
				require.Equal(t, len(held) == limit, w.full())
				for _, r := range held {
					require.Equal(t, r.id, w.ids[r.entry])
				}
			},
			"push": func(t *rapid.T) {
				if w.full() {
					t.Skip("full")
				}
				held = append(held, request{next, w.push(next)})
				next++
			},
			"complete": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("empty")
				}
				n := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				w.retire(held[n].entry)
				held = held[n+1:]
			},
			"reset": func(*rapid.T) {
				w.retireAll()
				held = nil
			},
		})
	})
}

// Each queue's requests are one list in their order, however they are mixed.
func TestBatchLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b batch
		b.turn = 1
		queues := make([]workQueue, 4)
		for range rapid.IntRange(1, 3).Draw(t, "turns") {
			want := make([][]uint64, len(queues))
			for i := range rapid.IntRange(0, 30).Draw(t, "requests") {
				q := rapid.IntRange(0, len(queues)-1).Draw(t, "queue")
				b.addSend(&queues[q], &ibv.Send{WRID: uint64(i), QP: ibv.QP(q), Flags: ibv.FlagHead})
				want[q] = append(want[q], uint64(i))
			}
			got := make([][]uint64, len(queues))
			for i, s := range b.Sends {
				if s.Flags&ibv.FlagHead == 0 {
					continue
				}
				require.Nil(t, got[s.QP], "two lists of one queue")
				for n := int32(i); n >= 0; n = b.Sends[n].Next {
					require.Equal(t, s.QP, b.Sends[n].QP)
					got[s.QP] = append(got[s.QP], b.Sends[n].WRID)
				}
			}
			require.Equal(t, want, got)
			b.clear()
		}
	})
}

func TestQueueTable(t *testing.T) {
	var table queueTable
	queues := make([]*workQueue, 3*pageQueues/2)
	for i := range queues {
		queues[i] = new(workQueue)
		require.NoError(t, table.add(queues[i]))
		require.Same(t, queues[i], table.lookup(queues[i].slot))
	}
	table.remove(queues[7])
	require.Nil(t, table.lookup(queues[7].slot))
	again := new(workQueue)
	require.NoError(t, table.add(again))
	require.Equal(t, queues[7].slot, again.slot, "numbers are used again")
	require.Nil(t, table.lookup(1<<32-1))
	require.Nil(t, table.lookup(2*pageQueues))
	rest := make([]*workQueue, pageQueues*maxPages-len(queues)-1)
	for i := range rest {
		rest[i] = again
	}
	require.NoError(t, table.add(rest...))
	require.ErrorIs(t, table.add(new(workQueue), new(workQueue)), verbs.ErrNoMemory)
	require.NoError(t, table.add(new(workQueue)), "one was left: all get numbers, or none")
}

// A number that an event carries names one object for ever.
func TestObjects(t *testing.T) {
	var o objects
	first := o.add("first")
	require.Equal(t, "first", o.find(first))
	o.remove(first)
	require.NotEqual(t, first, o.add("second"))
	require.Nil(t, o.find(first))
}
