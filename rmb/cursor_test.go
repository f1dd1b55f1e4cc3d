package rmb

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCursorTable(t *testing.T) {
	const size = 100
	for _, tc := range []struct {
		name     string
		from     Cursor
		n        uint32
		want     Cursor
		distance uint32
	}{
		{"nothing", Cursor{0, 5}, 0, Cursor{0, 5}, 0},
		{"inside", Cursor{0, 5}, 10, Cursor{0, 15}, 10},
		{"to the end", Cursor{0, 90}, 10, Cursor{1, 0}, 10},
		{"over the end", Cursor{3, 90}, 20, Cursor{4, 10}, 20},
		{"full from the start", Cursor{7, 0}, size, Cursor{8, 0}, size},
		{"full from the middle", Cursor{7, 40}, size, Cursor{8, 40}, size},
		{"wrap count wraps", Cursor{math.MaxUint16, 99}, 1, Cursor{0, 0}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.from.Add(size, tc.n)
			require.Equal(t, tc.want, got)
			d, ok := Diff(size, tc.from, got)
			require.True(t, ok)
			require.Equal(t, tc.distance, d)
		})
	}
}

func TestDiffRefusesImpossiblePairs(t *testing.T) {
	const size = 100
	for name, pair := range map[string][2]Cursor{
		"producer behind":       {{1, 10}, {1, 9}},
		"more than one round":   {{1, 10}, {2, 11}},
		"two rounds":            {{1, 10}, {3, 0}},
		"wrap behind":           {{1, 10}, {0, 90}},
		"consumer out of range": {{0, 100}, {1, 0}},
		"producer out of range": {{0, 0}, {0, 100}},
	} {
		_, ok := Diff(size, pair[0], pair[1])
		require.False(t, ok, name)
	}
	_, ok := Diff(0, Cursor{}, Cursor{})
	require.False(t, ok, "ring without memory")
}

// Absolute offsets are the model; cursors must agree with them, also across the 16-bit wrap of the wrap count.
func TestCursorAgreesWithOffsets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Uint32Range(1, MaxRing).Draw(t, "size")
		consumed := rapid.Uint64Range(0, 1<<40).Draw(t, "consumed")
		n := rapid.Uint32Range(0, size).Draw(t, "n")
		tail := CursorAt(size, consumed)
		head := tail.Add(size, n)
		require.Equal(t, CursorAt(size, consumed+uint64(n)), head)
		d, ok := Diff(size, tail, head)
		require.True(t, ok)
		require.Equal(t, n, d)
	})
}

func TestCursorAtWithoutMemory(t *testing.T) {
	require.Equal(t, Cursor{}, CursorAt(0, 17))
}
