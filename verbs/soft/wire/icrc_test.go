package wire

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuick(t *testing.T) {
	b, err := hex.DecodeString(strings.ReplaceAll("2460ffff 000000d3 00cf1710 4630818b e28935d9 0e9a9550 5401be88 5e500000 78f353f3", " ", ""))
	require.NoError(t, err)
	a := netip.MustParseAddr("192.168.0.7")
	c := NewICRC(Flow{a, a, 0xc000, 4791})
	s := Update(c.Begin(0x0478, len(b), b[:12]), b[12:len(b)-4])
	require.Equal(t, b[len(b)-4:], AppendICRC(nil, s))
	id, ok := c.Verify(b)
	require.True(t, ok)
	require.Equal(t, uint16(0x478), id)
	b, err = hex.DecodeString(strings.ReplaceAll("0440ffff 00000011 80fffffe 70696e67 6692d1a2", " ", ""))
	require.NoError(t, err)
	c = NewICRC(Flow{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), 0xc3a5, 4791})
	s = Update(c.Begin(0x0478, len(b), b[:12]), b[12:len(b)-4])
	require.Equal(t, b[len(b)-4:], AppendICRC(nil, s))
	_, ok = c.Verify(b)
	require.True(t, ok)
}
