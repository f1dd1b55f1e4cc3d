package rmb

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/lab/leak"
)

// ringMachine compares a ring with bytes.Buffer under any sequence of operations.
type ringMachine struct {
	ring     Ring
	model    bytes.Buffer
	produced uint64
	consumed uint64
	next     byte
}

func (m *ringMachine) Produce(t *rapid.T) {
	span := m.ring.WriteSpan()
	n := rapid.IntRange(0, len(span)).Draw(t, "n")
	for i := range n {
		span[i] = m.next
		m.model.WriteByte(m.next)
		m.next++
	}
	require.NoError(t, m.ring.Produce(n))
	m.produced += uint64(n)
}

func (m *ringMachine) Consume(t *rapid.T) {
	span := m.ring.ReadSpan()
	n := rapid.IntRange(0, len(span)).Draw(t, "n")
	require.True(t, bytes.Equal(m.model.Next(n), span[:n]))
	require.NoError(t, m.ring.Consume(n))
	m.consumed += uint64(n)
}

func (m *ringMachine) ConsumeTo(t *rapid.T) {
	n := rapid.IntRange(0, m.ring.Len()).Draw(t, "n")
	m.model.Next(n)
	m.consumed += uint64(n)
	require.NoError(t, m.ring.ConsumeTo(m.consumed))
}

func (m *ringMachine) Overrun(t *rapid.T) {
	require.ErrorIs(t, m.ring.Produce(m.ring.Free()+1), ErrOverrun)
	require.ErrorIs(t, m.ring.Produce(-1), ErrOverrun)
	require.ErrorIs(t, m.ring.Consume(m.ring.Len()+1), ErrUnderrun)
	require.ErrorIs(t, m.ring.Consume(-1), ErrUnderrun)
	require.ErrorIs(t, m.ring.ConsumeTo(m.produced+1), ErrUnderrun)
	if m.consumed > 0 {
		require.ErrorIs(t, m.ring.ConsumeTo(m.consumed-1), ErrUnderrun)
	}
}

func (m *ringMachine) Check(t *rapid.T) {
	require.Equal(t, m.produced, m.ring.Produced())
	require.Equal(t, m.consumed, m.ring.Consumed())
	require.Equal(t, m.model.Len(), m.ring.Len())
	require.Equal(t, m.ring.Size()-m.model.Len(), m.ring.Free())
	require.Equal(t, cursorAt(uint32(m.ring.Size()), m.produced), m.ring.Head())
	require.Equal(t, cursorAt(uint32(m.ring.Size()), m.consumed), m.ring.tail)
	var all []byte
	for rest := m.ring; rest.Len() > 0; {
		span := rest.ReadSpan()
		require.NotEmpty(t, span)
		all = append(all, span...)
		require.NoError(t, rest.Consume(len(span)))
	}
	require.True(t, bytes.Equal(m.model.Bytes(), all))
}

func TestRingAgainstBuffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 50).Draw(t, "size")
		m := &ringMachine{ring: NewRing(make([]byte, size))}
		t.Repeat(map[string]func(*rapid.T){
			"produce": m.Produce, "consume": m.Consume, "consumeTo": m.ConsumeTo, "overrun": m.Overrun, "": m.Check,
		})
	})
}

func TestZeroRing(t *testing.T) {
	var r Ring
	require.Empty(t, r.WriteSpan())
	require.Empty(t, r.ReadSpan())
	require.NoError(t, r.Produce(0))
	require.ErrorIs(t, r.Produce(1), ErrOverrun)
}

func TestRingSpansCannotBeExtended(t *testing.T) {
	buf := make([]byte, 8, 16)
	r := NewRing(buf)
	span := r.WriteSpan()
	require.Equal(t, 8, cap(span))
}

func BenchmarkRing(b *testing.B) {
	r := NewRing(make([]byte, 1<<18))
	b.ReportAllocs()
	for b.Loop() {
		_ = r.Produce(min(64, len(r.WriteSpan())))
		_ = r.Consume(min(64, len(r.ReadSpan())))
	}
}

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

func TestRingsShrinkAsMemoryFills(t *testing.T) {
	const limit = 1 << 30
	for _, rings := range []struct {
		size func(PoolStats) int
		most int
	}{{PoolStats.RingSize, 9000}, {PoolStats.FirstRingSize, 20_000}} {
		used, flows := int64(0), 0
		for {
			n := int64(rings.size(PoolStats{Limit: limit, Used: used}))
			if used+n > limit {
				break
			}
			used += n
			flows++
		}
		require.Greater(t, flows, rings.most, "flows that fit the default memory")
	}
	require.Equal(t, 1<<20, PoolStats{Limit: limit}.RingSize())
	require.Equal(t, 256<<10, PoolStats{Limit: limit}.FirstRingSize())
}

func TestHalfOfTheMemoryIsNotForGrowth(t *testing.T) {
	const limit = 1 << 30
	require.True(t, PoolStats{Limit: limit, Used: limit/2 - 4<<20}.MayGrow(4<<20))
	require.False(t, PoolStats{Limit: limit, Used: limit/2 - 4<<20 + 1}.MayGrow(4<<20))
}

// An idle connection has two regions.
func TestIdleSizes(t *testing.T) {
	leak.SizeAtMost[Region](t, 80)
}
