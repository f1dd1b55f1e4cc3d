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
