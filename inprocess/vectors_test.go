package inprocess

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

// TestVectors compares the records with the bytes of the protocol, which are those of a little-endian host.
func TestVectors(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("a big-endian host: records are in host byte order")
	}
	const tag, id = 3<<IndexBits | 7, 0x0102030405060708
	for name, r := range map[string]Record{
		"inprocess-hello":  {What: Hello, ID: 123456789, A: Version, B: 65536},
		"inprocess-ask":    {What: Ask, Tag: tag, A: 4096, B: 65536},
		"inprocess-grant":  {What: Grant, Tag: tag, Side: 1, ID: id, A: 42},
		"inprocess-deny":   {What: Deny, Tag: tag, Why: WhyNoPeer},
		"inprocess-closed": {What: Closed, Tag: tag, ID: id, A: 4096, B: 65536},
	} {
		t.Run(name, func(t *testing.T) {
			want := golden.Vector(t, name)
			require.Equal(t, want, r.Append(nil))
			back, err := ParseRecord(want)
			require.NoError(t, err)
			require.Equal(t, r, back)
		})
	}
}
