package rmb

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
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
