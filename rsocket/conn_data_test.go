package rsocket

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

// The worked example of the protocol reference: a little-endian client with 384 receives, no direct placement, half of
// a 128 KiB ring as the first grant.
const exampleConnData = "01 02 0180 000000 00 00007f0000a03000 00001001 00000002 00007f0000b00000 00001002 00010000"

func exampleConn() ConnData {
	return ConnData{
		Iomap: true, Credits: 384,
		TargetSGL: SGE{Addr: 0x7f0000a03000, Key: 0x1001, Length: 2},
		DataBuf:   SGE{Addr: 0x7f0000b00000, Key: 0x1002, Length: 65536},
	}
}

func TestStockStreamConnData(t *testing.T) {
	s, err := NewStream(memory(Config{Credits: 384}, 131072, 2))
	require.NoError(t, err)
	s.bigEndian = false
	require.Equal(t, exampleConn(), s.ConnData())
	s.bigEndian = true
	require.Equal(t, byte(flagNet|flagIomap), s.ConnData().Append(nil)[1])
}

func TestConnDataPadding(t *testing.T) {
	got, err := ParseConnData(append(unhex(t, exampleConnData), make([]byte, 16)...))
	require.NoError(t, err)
	require.Equal(t, exampleConn(), got)
}

func TestConnDataTruncated(t *testing.T) {
	full := unhex(t, exampleConnData)
	for n := range full {
		_, err := ParseConnData(full[:n])
		require.ErrorIs(t, err, ErrConnData, n)
	}
}

func TestConnDataVersion(t *testing.T) {
	b := unhex(t, exampleConnData)
	for _, v := range []byte{0, 2, 255} {
		b[0] = v
		_, err := ParseConnData(b)
		require.ErrorIs(t, err, ErrVersion)
	}
}

func TestScaledByte(t *testing.T) {
	for _, tc := range []struct {
		v       uint16
		b       byte
		decoded uint16
	}{
		{0, 0x00, 0},
		{1, 0x01, 1},
		{128, 0x80, 128},
		{129, 0x80, 128},
		{255, 0x80, 128},
		{256, 0x81, 256},
		{512, 0x82, 512},
		{1000, 0x83, 768},
		{0x7fff, 0xff, 0x7f00},
		{0x8000, 0xff, 0x7f00},
		{0xffff, 0xff, 0x7f00},
	} {
		require.Equal(t, tc.b, scaleDown(tc.v), tc.v)
		require.Equal(t, tc.decoded, scaleUp(tc.b), tc.v)
	}
}

func FuzzConnData(f *testing.F) {
	f.Add(unhex(f, exampleConnData))
	f.Add(exampleConn().Append(nil)[:39])
	f.Add(ConnData{BigEndian: true, IomapSlots: 1000, Credits: 0xffff}.Append(nil))
	f.Add(append([]byte{2}, make([]byte, 60)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseConnData(b)
		if err != nil {
			return
		}
		again, err := ParseConnData(d.Append(nil))
		require.NoError(t, err)
		require.Equal(t, d, again)
		// Whatever a peer says, connecting ends in a stream or in a violation.
		for _, dialect := range []Dialect{Stock, Gateway} {
			s, err := NewStream(memory(Config{Dialect: dialect}, 4096, 4))
			require.NoError(t, err)
			if err := s.Connect(d); err != nil {
				require.ErrorIs(t, err, ErrProtocol)
				continue
			}
			n, _ := s.Window()
			require.Positive(t, n)
		}
	})
}
