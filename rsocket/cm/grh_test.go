package cm

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGRH(t *testing.T) {
	b := make([]byte, grhSize)
	_, _, ok := parseGRH(b)
	require.False(t, ok)
	b[20] = 0x45
	copy(b[32:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	src, dst, ok := parseGRH(b)
	require.True(t, ok)
	require.Equal(t, "10.0.0.1", src.String())
	require.Equal(t, "10.0.0.2", dst.String())

	b = make([]byte, grhSize)
	b[0], b[20] = 0x60, 0x45
	one, two := netip.MustParseAddr("fd77::1"), netip.MustParseAddr("fd77::4500:0:0:2")
	copy(b[8:], one.AsSlice())
	copy(b[24:], two.AsSlice())
	src, dst, ok = parseGRH(b)
	require.True(t, ok)
	require.Equal(t, one, src)
	require.Equal(t, two, dst)
}

func TestGRHTruncated(t *testing.T) {
	b := make([]byte, grhSize)
	b[20] = 0x45
	copy(b[32:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	for n := range b {
		_, _, ok := parseGRH(b[:n])
		require.False(t, ok)
	}
}

func FuzzGRH(f *testing.F) {
	b := make([]byte, grhSize)
	b[20] = 0x45
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		src, dst, ok := parseGRH(b)
		require.Equal(t, ok, src.IsValid() && dst.IsValid())
		require.False(t, src.Is4In6() || dst.Is4In6())
	})
}
