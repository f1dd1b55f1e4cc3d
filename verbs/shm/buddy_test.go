package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Ranges never overlap, lie in the arena, are aligned to their size, and when
// all are released everything is one piece again.
func TestBuddyModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pages := rapid.Uint64Range(1, 300).Draw(t, "pages")
		b := newBuddy(pages * pageSize)
		live := map[uint64]uint64{}
		owner := make([]uint64, pages)
		free := func(off uint64) {
			n := live[off]
			delete(live, off)
			for i := off / pageSize; i < (off+orderSize(order(n)))/pageSize; i++ {
				owner[i] = 0
			}
			b.release(off, n)
		}
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "free") {
				offs := []uint64{}
				for o := range live {
					offs = append(offs, o)
				}
				free(offs[0])
				continue
			}
			n := rapid.Uint64Range(1, 20*pageSize).Draw(t, "n")
			off, ok := b.alloc(n)
			if !ok {
				continue
			}
			size := orderSize(order(n))
			require.GreaterOrEqual(t, size, n)
			require.LessOrEqual(t, off+size, b.size)
			require.Zero(t, off%size)
			for p := off / pageSize; p < (off+size)/pageSize; p++ {
				require.Zero(t, owner[p], "overlap")
				owner[p] = uint64(i + 1)
			}
			live[off] = n
		}
		for o := range live {
			free(o)
		}
		require.Zero(t, b.used)
		fresh := newBuddy(pages * pageSize)
		require.Equal(t, fresh.free, b.free)
	})
}

func TestBuddyLimits(t *testing.T) {
	b := newBuddy(8 * pageSize)
	for _, n := range []uint64{0, 8*pageSize + 1, 1 << 63, ^uint64(0)} {
		_, ok := b.alloc(n)
		require.False(t, ok, "%d", n)
	}
	off, ok := b.alloc(8 * pageSize)
	require.True(t, ok)
	require.Zero(t, off)
	_, ok = b.alloc(1)
	require.False(t, ok)
}
