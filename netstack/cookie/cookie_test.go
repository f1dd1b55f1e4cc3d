package cookie

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// answer is the header of a segment that repeats stamp.
func answer(stamp uint32) packet.TCP {
	t := make(packet.TCP, packet.TCPMinLen, packet.TCPMaxLen)
	t.SetSeq(101)
	t.SetAck(5001)
	t.SetFlags(packet.FlagACK)
	t = append(t, packet.KindNOP, packet.KindNOP, packet.KindTimestamps, packet.TimestampsLen, 0, 0, 0, 9)
	t = binary.BigEndian.AppendUint32(t, stamp)
	t.SetHeaderLen(len(t))
	return t
}

// TestRead: what a SYN asked for comes back, and the SYN made of it asks for the same.
func TestRead(t *testing.T) {
	for _, mss := range sizes() {
		for _, ws := range []int{-1, 0, 7, 14} {
			for _, sack := range []bool{false, true} {
				p, ok := Read(answer(Stamp(mss+3, ws, sack, 0xbeef, 1)))
				require.True(t, ok)
				want := packet.TCPOptions{
					MSS: mss, WS: int8(ws), SACK: sack, TS: true, TSVal: 9,
					Option: packet.Option{Version: packet.OptionVersion, Role: packet.RoleOffer, Nonce: 0xbeef},
				}
				require.Equal(t, want, p.Ask)
				require.EqualValues(t, 100, p.ISN)
				require.EqualValues(t, 5000, p.ISS)
				syn := p.SYN(answer(0))
				want.Option = packet.Option{}
				require.Equal(t, want, packet.ParseTCPOptions(syn.Options()))
				require.EqualValues(t, 100, syn.Seq())
				require.EqualValues(t, packet.FlagSYN, syn.Flags())
			}
		}
	}
}

// TestReadTruncated: a segment without whole timestamps, or of another kind, proves nothing.
func TestReadTruncated(t *testing.T) {
	whole := answer(1)
	for n := packet.TCPMinLen; n < len(whole); n += 4 {
		cut := append(packet.TCP(nil), whole[:n]...)
		_, ok := Read(cut)
		require.False(t, ok, n)
	}
	for _, flags := range []byte{0, packet.FlagSYN | packet.FlagACK, packet.FlagRST | packet.FlagACK} {
		whole.SetFlags(flags)
		_, ok := Read(whole)
		require.False(t, ok)
	}
}
