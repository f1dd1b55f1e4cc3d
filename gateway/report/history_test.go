package report

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestHistoryAgainstAList compares the ring with a plain list.
func TestHistoryAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 5).Draw(t, "limit")
		h, model := NewHistory(limit, nil), []uint64(nil)
		for id := range rapid.Uint64Range(0, 20).Draw(t, "adds") {
			h.Add(ConnInfo{ID: id})
			model = append(model, id)
			kept := slices.Clone(model[max(0, len(model)-max(limit, 1)):])
			slices.Reverse(kept)
			var got []uint64
			for _, c := range h.List() {
				got = append(got, c.ID)
			}
			require.Equal(t, kept, got)
			require.Equal(t, len(kept), h.len())
		}
	})
}

func TestHistoryIsSafeForConcurrentUse(t *testing.T) {
	h := NewHistory(10, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				h.Add(ConnInfo{})
				h.List()
			}
		})
	}
	wg.Wait()
	require.Equal(t, 10, h.len())
	require.Empty(t, NewHistory(3, nil).List())
}

// len is the number of entries kept.
func (h *History) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ring)
}

// TestFeedLoses: a reader hears of every event, or in its place of how many are missing
// there, also of the last ones.
func TestFeedLoses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := NewFeed()
		r, leave, ok := f.Read()
		require.True(t, ok)
		defer leave()
		var told, heard, missed uint64
		hear := func() {
			e := <-r.Events
			r.Drained()
			if e.Event == EventLost {
				require.Positive(t, e.Lost)
				heard += e.Lost
				return
			}
			require.Equal(t, heard, e.Conn.ID)
			heard++
		}
		for range rapid.IntRange(1, 8).Draw(t, "turns") {
			for range rapid.IntRange(0, feedRoom+feedRoom/2).Draw(t, "told") {
				f.Tell(EventNative, ConnInfo{ID: told})
				told++
			}
			n := rapid.Uint64Range(0, 3).Draw(t, "missed")
			missed += n
			told += n
			require.Equal(t, n, f.Missed(missed))
			require.Zero(t, f.Missed(missed))
			for range min(len(r.Events), rapid.IntRange(0, feedRoom+1).Draw(t, "heard")) {
				hear()
			}
		}
		for len(r.Events) > 0 {
			hear()
		}
		require.Equal(t, told, heard)
	})
}
