package wire

import (
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// slowMultiply is the schoolbook: a bit of one factor at a time.
func slowMultiply(a, b uint32) (p uint32) {
	for i := range 32 {
		if b&(one>>i) != 0 {
			p ^= a
		}
		if a&1 != 0 {
			a = a>>1 ^ crc32.IEEE
		} else {
			a >>= 1
		}
	}
	return p
}

func TestMultiply(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint32().Draw(t, "a"), rapid.Uint32().Draw(t, "b")
		require.Equal(t, slowMultiply(a, b), multiply(a, b))
		require.Equal(t, a, multiply(a, one))
		require.Equal(t, step(a), multiply(a, step(one)))
		require.Equal(t, one, multiply(step(one), stepBack(one)))
	})
	// All ones have the longest sums in the integer products.
	require.Equal(t, slowMultiply(^uint32(0), ^uint32(0)), multiply(^uint32(0), ^uint32(0)))
}

func TestStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.Uint32().Draw(t, "s")
		require.Equal(t, ^crc32.Update(^s, crc32.IEEETable, []byte{0}), step(s))
		require.Equal(t, s, stepBack(step(s)))
		require.Equal(t, s, step(stepBack(s)))
	})
}
