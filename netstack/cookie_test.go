package netstack

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// stampCookie is the timestamp of the SYN-ACK for a SYN that announced an MSS (0: none) and a window
// scale (-1: none). tick is whatever its maker likes.
func stampCookie(mss uint16, ws int, sack bool, nonce uint16, tick uint8) uint32 {
	stamp := uint32(nonce)<<16 | uint32(tick)<<8
	if ws < 0 {
		ws = noScale
	}
	stamp |= uint32(ws) << scaleShift
	if sack {
		stamp |= sackBit
	}
	for i, size := range cookieSizes() {
		if mss >= size {
			stamp = stamp&^mssBits | uint32(i)
		}
	}
	return stamp
}

// cookieReply is the header of a segment that repeats stamp.
func cookieReply(stamp uint32) packet.TCP {
	t := make(packet.TCP, packet.TCPMinLen, packet.TCPMaxLen)
	t.SetSeq(101)
	t.SetAck(5001)
	t.SetFlags(packet.FlagACK)
	t = append(t, packet.KindNOP, packet.KindNOP, packet.KindTimestamps, packet.TimestampsLen, 0, 0, 0, 9)
	t = binary.BigEndian.AppendUint32(t, stamp)
	t.SetHeaderLen(len(t))
	return t
}

// TestReadCookie: what a SYN asked for comes back, and the SYN made of it asks for the same.
func TestReadCookie(t *testing.T) {
	for _, mss := range cookieSizes() {
		for _, ws := range []int{-1, 0, 7, 14} {
			for _, sack := range []bool{false, true} {
				p, ok := readCookie(cookieReply(stampCookie(mss+3, ws, sack, 0xbeef, 1)))
				require.True(t, ok)
				want := packet.TCPOptions{
					MSS: mss, WS: int8(ws), SACK: sack, TS: true, TSVal: 9,
					Option: packet.Option{Version: packet.OptionVersion, Role: packet.RoleOffer, Nonce: 0xbeef},
				}
				require.Equal(t, want, p.Ask)
				require.EqualValues(t, 100, p.ISN)
				require.EqualValues(t, 5000, p.ISS)
				syn := p.SYN(cookieReply(0))
				want.Option = packet.Option{}
				require.Equal(t, want, packet.ParseTCPOptions(syn.Options()))
				require.EqualValues(t, 100, syn.Seq())
				require.EqualValues(t, packet.FlagSYN, syn.Flags())
			}
		}
	}
}

// TestReadCookieTruncated: a segment without whole timestamps, or of another kind, proves nothing.
func TestReadCookieTruncated(t *testing.T) {
	whole := cookieReply(1)
	for n := packet.TCPMinLen; n < len(whole); n += 4 {
		cut := append(packet.TCP(nil), whole[:n]...)
		_, ok := readCookie(cut)
		require.False(t, ok, n)
	}
	for _, flags := range []byte{0, packet.FlagSYN | packet.FlagACK, packet.FlagRST | packet.FlagACK} {
		whole.SetFlags(flags)
		_, ok := readCookie(whole)
		require.False(t, ok)
	}
}
