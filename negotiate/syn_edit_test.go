package negotiate

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireChecksum verifies a TCP checksum the other way round: the sum over everything is all ones.
func requireChecksum(t *testing.T, pkt []byte) {
	t.Helper()
	ip, err := parseIP(pkt)
	require.NoError(t, err)
	tcp := pkt[ip.headerLen:ip.totalLen]
	require.Equal(t, uint16(0xffff), fold(sumWords(pseudoSum(pkt, len(tcp)), tcp)))
}

func TestNeutralise(t *testing.T) {
	for _, text := range []string{synV4, synV6} {
		pkt := unhex(t, text)
		before, err := ParseSYN(pkt)
		require.NoError(t, err)
		require.True(t, Neutralise(pkt))
		after, err := ParseSYN(pkt)
		require.NoError(t, err)
		require.False(t, after.HasOption())
		require.Equal(t, bytes.Repeat([]byte{kindNOP}, OptionLen), pkt[before.OptionOffset:before.OptionOffset+OptionLen])
		before.Option, before.OptionOffset = Option{}, 0
		require.Equal(t, before, after)
		require.False(t, Neutralise(pkt))
	}
	require.False(t, Neutralise([]byte{0x45}))
}

func TestRecomputeChecksum(t *testing.T) {
	v4 := unhex(t, synV4)
	require.NoError(t, RecomputeChecksum(v4))
	require.Equal(t, uint16(0xa1c8), binary.BigEndian.Uint16(v4[36:]), "computed independently")
	requireChecksum(t, v4)

	v6 := append(unhex(t, synV6), "odd"...)
	binary.BigEndian.PutUint16(v6[4:], 55)
	require.NoError(t, RecomputeChecksum(v6))
	require.Equal(t, uint16(0x63b8), binary.BigEndian.Uint16(v6[56:]), "computed independently")
	requireChecksum(t, v6)

	require.Error(t, RecomputeChecksum(v4[:60]), "not whole")
	require.Error(t, RecomputeChecksum(nil))
}
