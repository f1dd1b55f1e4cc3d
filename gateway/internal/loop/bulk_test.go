package loop

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeBulk is a member with so many bytes to move.
type fakeBulk struct {
	s           *Shard
	bytes, most int
	steps       *[]*fakeBulk
}

func (b *fakeBulk) Owner() Owner { return nil }

func (b *fakeBulk) Stop() {}

func (b *fakeBulk) Step() int {
	*b.steps = append(*b.steps, b)
	n := min(b.bytes, b.most)
	if b.bytes -= n; b.bytes > 0 {
		b.s.LaterBulk(b)
	}
	return n
}

// TestBulkTurns: members step one after the other, and those of a turn no more than its
// budget; small steps count for more than their bytes.
func TestBulkTurns(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer s.CloseFDs()
	var steps []*fakeBulk
	var all []*fakeBulk
	for range 3 {
		b := &fakeBulk{s: s, bytes: 2 * BulkTurn, most: BulkTurn, steps: &steps}
		all = append(all, b)
		s.LaterBulk(b)
	}
	for i := range 6 {
		require.True(t, s.runBulk())
		require.Len(t, steps, i+1, "one record a turn")
		require.Same(t, all[i%3], steps[i], "in turn")
	}
	require.False(t, s.runBulk())
	for range 100 {
		s.LaterBulk(&fakeBulk{s: s, bytes: 1, most: 1, steps: &steps})
	}
	steps = nil
	require.True(t, s.runBulk())
	require.Len(t, steps, BulkTurn/bulkStep)
}
