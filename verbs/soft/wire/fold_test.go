package wire

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUpdateIsTheCRC compares every length up to some rounds of each loop, at
// every alignment that matters, and longer ones, with the hash package.
func TestUpdateIsTheCRC(t *testing.T) {
	t.Parallel()
	r := rand.NewChaCha8([32]byte{1})
	buf := make([]byte, 64<<10)
	_, _ = r.Read(buf)
	check := func(start, n int) {
		b, state := buf[start:start+n], uint32(r.Uint64())
		require.Equal(t, crc32.Update(state, crc32.IEEETable, b), Update(state, b), "%d bytes from %d on", n, start)
	}
	for n := range 1200 {
		check(n%67, n)
	}
	for range 2000 {
		n := int(r.Uint64() % uint64(len(buf)))
		check(int(r.Uint64()%uint64(len(buf)-n)), n)
	}
}

// TestFoldKnownFactors: those of Gopal et al. for folding by 512 and 128 bits, and of the last step.
func TestFoldKnownFactors(t *testing.T) {
	t.Parallel()
	require.Equal(t, [2]uint64{0x154442bd4, 0x1c6e41596}, [2]uint64(foldings.by512[:2]))
	require.Equal(t, [2]uint64{0x1751997d0, 0x0ccaa009e}, foldings.by128)
	require.Equal(t, uint64(0x163cd6124), foldings.by64)
}

// TestUpdateAppend: the copy is whole, nothing beside it is touched, and the state is that of Update.
func TestUpdateAppend(t *testing.T) {
	t.Parallel()
	r := rand.NewChaCha8([32]byte{2})
	src := make([]byte, 9000)
	_, _ = r.Read(src)
	for _, n := range []int{0, 1, 16, 255, 256, 257, 512, 768, 1024, 1040, 2048, 4096, 4097, 8192} {
		for _, room := range []int{0, n - 1, n, n + 100} {
			for start := range 65 {
				b, state := src[start:start+n], uint32(r.Uint64())
				memory := make([]byte, start+max(room, 0)+8)
				dst := memory[: start : start+max(room, 0)]
				got, after := UpdateAppend(dst, state, b)
				require.Equal(t, Update(state, b), after)
				require.Equal(t, b, got[start:])
				require.Equal(t, make([]byte, 8), memory[len(memory)-8:], "%d bytes, room %d", n, room)
			}
		}
	}
}
