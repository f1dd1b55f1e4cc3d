package apps

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNumbered(t *testing.T) {
	for _, size := range []int{0, 1, numberedHead - 1, numberedHead, numberedHead + 1, 1472, 65507} {
		d := numbered{seed: 7, number: 1 << 40, size: size}
		b := d.append([]byte("before"))[len("before"):]
		require.Len(t, b, size)
		got, err := parseNumbered(b)
		require.NoError(t, err)
		if size < numberedHead {
			d = numbered{size: size}
		}
		require.Equal(t, d, got)
		for i := range b {
			b[i]++
			_, err := parseNumbered(b)
			if i < 4 || i >= numberedHead || size < numberedHead {
				require.ErrorIs(t, err, errAlien, "byte %d of %d", i, size)
			}
			b[i]--
			if size > 2*numberedHead && i > 100 {
				break
			}
		}
		_, err = parseNumbered(append(b, 0))
		require.ErrorIs(t, err, errAlien)
	}
}

// TestNumberedCut: no part of a datagram but the empty one passes for a whole.
func TestNumberedCut(t *testing.T) {
	b := numbered{seed: 7, number: 3, size: 100}.append(nil)
	for i := 1; i < len(b); i++ {
		_, err := parseNumbered(b[:i])
		require.ErrorIs(t, err, errAlien, "%d", i)
		_, err = parseNumbered(b[i:])
		require.ErrorIs(t, err, errAlien, "%d", i)
	}
	// What a gateway puts in front of a datagram is found.
	_, err := parseNumbered(append([]byte{4, 8, 0x1b, 0x58, 10, 77, 0, 1}, b...))
	require.ErrorIs(t, err, errAlien)
}
