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
		name string
		from Cursor
		n    uint32
		want Cursor
	}{
		{"nothing", Cursor{0, 5}, 0, Cursor{0, 5}},
		{"inside", Cursor{0, 5}, 10, Cursor{0, 15}},
		{"to the end", Cursor{0, 90}, 10, Cursor{1, 0}},
		{"over the end", Cursor{3, 90}, 20, Cursor{4, 10}},
		{"full from the start", Cursor{7, 0}, size, Cursor{8, 0}},
		{"full from the middle", Cursor{7, 40}, size, Cursor{8, 40}},
		{"wrap count wraps", Cursor{math.MaxUint16, 99}, 1, Cursor{0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := tc.from.Add(size, tc.n)
			require.Equal(t, tc.want, got)
		})
	}
}

// cursorAt returns the cursor of an absolute offset in a ring of size bytes, or the zero cursor if it has none.
func cursorAt(size uint32, offset uint64) Cursor {
	if size == 0 {
		return Cursor{}
	}
	return Cursor{Wrap: uint16(offset / uint64(size)), Count: uint32(offset % uint64(size))}
}

// Absolute offsets are the model; cursors must agree with them, also across the 16-bit wrap of the wrap count.
func TestCursorAgreesWithOffsets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Uint32Range(1, MaxRing).Draw(t, "size")
		consumed := rapid.Uint64Range(0, 1<<40).Draw(t, "consumed")
		n := rapid.Uint32Range(0, size).Draw(t, "n")
		require.Equal(t, cursorAt(size, consumed+uint64(n)), cursorAt(size, consumed).Add(size, n))
	})
}
