package packet

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/internal/golden"
)

// requireChecksum verifies a TCP checksum the other way round: the sum over everything is all ones.
func requireChecksum(t *testing.T, pkt []byte) {
	t.Helper()
	p, err := ParseIP(pkt)
	require.NoError(t, err)
	pseudo := append(bytes.Clone(addresses(p.Header)), 0, ProtoTCP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(p.Payload)))
	require.Equal(t, uint16(0xffff), slowSum(append(pseudo, p.Payload...)))
	require.True(t, p.TransportSumOK())
}

// slowSum is RFC 1071, 4.1, word by word.
func slowSum(b []byte) uint16 {
	var sum uint32
	for i, x := range b {
		if i%2 == 0 {
			sum += uint32(x) << 8
		} else {
			sum += uint32(x)
		}
		if sum > 0xffff {
			sum = sum&0xffff + 1
		}
	}
	return uint16(sum)
}

// The example of RFC 1071, 3.
func TestSumVector(t *testing.T) {
	b := []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}
	require.Equal(t, uint16(0xddf2), Sum(b, 0))
	require.Equal(t, uint16(0xddf2), Combine(Sum(b[:2], 0), Sum(b[2:], 0)))
	require.Equal(t, uint16(0x0100), Sum([]byte{1}, 0))
}

// Sums of any length, in any even pieces, are those of the definition.
func TestSumModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(r, "bytes")
		cut := rapid.IntRange(0, len(b)/2).Draw(r, "cut") * 2
		want := slowSum(b)
		if got := Sum(b[cut:], Sum(b[:cut], 0)); got != want {
			r.Fatalf("%#x, not %#x", got, want)
		}
		if got := Combine(Sum(b[:cut], 0), Sum(b[cut:], 0)); got != want {
			r.Fatalf("combined %#x, not %#x", got, want)
		}
	})
}

func TestStripOption(t *testing.T) {
	for _, text := range []string{synV4, synV6} {
		pkt := golden.Unhex(t, text)
		s, err := ParseSegment(pkt)
		require.NoError(t, err)
		o := ParseTCPOptions(s.Options).Option
		want := bytes.Replace(pkt, AppendOption(nil, o), bytes.Repeat([]byte{KindNOP}, OptionLen), 1)
		require.NotEqual(t, want, pkt)
		stripped, err := StripOption(pkt)
		require.NoError(t, err)
		require.True(t, stripped)
		require.Equal(t, want, pkt)
		stripped, err = StripOption(pkt)
		require.NoError(t, err)
		require.False(t, stripped)
	}
	other := withOptions(t, FlagACK, `fe 0a 53 4d 47 57 21 00 be ef 01 01 fe 0a 53 4d 47 57 14 00 be ef 01 01`)
	stripped, err := StripOption(other)
	require.NoError(t, err)
	require.True(t, stripped, "of any version and role, on any segment")
	require.Equal(t, bytes.Repeat([]byte{KindNOP}, 24), other[40:])
	_, err = StripOption([]byte{0x45})
	require.ErrorIs(t, err, ErrTruncated)
}

func TestSetTCPChecksum(t *testing.T) {
	v4 := golden.Unhex(t, synV4)
	require.NoError(t, SetTCPChecksum(v4))
	require.Equal(t, uint16(0xa1c8), binary.BigEndian.Uint16(v4[36:]), "computed independently")
	requireChecksum(t, v4)

	v6 := append(golden.Unhex(t, synV6), "odd"...)
	binary.BigEndian.PutUint16(v6[4:], 55)
	require.NoError(t, SetTCPChecksum(v6))
	require.Equal(t, uint16(0x63b8), binary.BigEndian.Uint16(v6[56:]), "computed independently")
	requireChecksum(t, v6)

	require.ErrorIs(t, SetTCPChecksum(v4[:60]), ErrTruncated)
	require.ErrorIs(t, SetTCPChecksum(nil), ErrTruncated)
}

// An edited checksum is that of the edited header, at odd offsets too.
func TestEditor(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		pkt := golden.Unhex(t, synV4)
		copy(pkt[40:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(r, "options"))
		require.NoError(t, SetTCPChecksum(pkt))
		header, err := parseTCP(pkt[20:])
		require.NoError(t, err)
		e := Editor{TCP: header}
		at := rapid.IntRange(20, 48).Draw(r, "at")
		v := rapid.Uint32().Draw(r, "value")
		e.Put32(at, v)
		e.Put16(14, rapid.Uint16().Draw(r, "window"))
		e.Finish()
		require.Equal(t, v, binary.BigEndian.Uint32(header[at:]))
		requireChecksum(t, pkt)
	})
}

func BenchmarkSum(b *testing.B) {
	payload := make([]byte, 1460)
	for i := range payload {
		payload[i] = byte(rand.Uint32())
	}
	b.SetBytes(int64(len(payload)))
	for b.Loop() {
		_ = Sum(payload, 0)
	}
}
