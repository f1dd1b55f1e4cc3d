package rogue

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

var (
	addrA = netip.MustParseAddrPort("10.0.0.1:40000")
	addrB = netip.MustParseAddrPort("10.0.0.2:7000")
)

// whole is a segment as a raw socket gives it.
func whole(s segment) []byte {
	return packet.Segment{
		Src: addrA, Dst: addrB, Seq: s.seq, Ack: s.ack, Flags: s.flags, Options: s.options, Payload: s.payload,
	}.Append(nil)
}

func TestSegment(t *testing.T) {
	want := segment{seq: 1, ack: 2, flags: packet.FlagACK | packet.FlagPSH, options: timestamps(7, 8), payload: []byte("abc")}
	got, ok := split(whole(want), addrA, addrB)
	require.True(t, ok)
	require.Equal(t, want, got)
	ts, ok := got.stamp()
	require.True(t, ok)
	require.EqualValues(t, 7, ts)
	p, err := packet.ParseIP(whole(want))
	require.NoError(t, err)
	require.Equal(t, p.Payload[:14], want.bytes(addrA, addrB)[:14])
	require.True(t, p.TransportSumOK())
	_, ok = split(whole(want), addrB, addrA)
	require.False(t, ok, "of another connection")
}

func TestSYNIsAnOffer(t *testing.T) {
	pkt := whole(segment{seq: 5, flags: packet.FlagSYN, options: synOptions(1, 0xbeef)})
	syn, err := packet.ParseSegment(pkt)
	require.NoError(t, err)
	require.EqualValues(t, packet.FlagSYN, syn.Flags)
	o := packet.ParseTCPOptions(syn.Options)
	require.True(t, o.TS, "loss recovery needs timestamps")
	require.Equal(t, option(packet.RoleOffer, 0xbeef), o.Option)
}

func TestSplitTruncated(t *testing.T) {
	pkt := whole(segment{options: timestamps(1, 2)})
	for n := range pkt {
		_, ok := split(pkt[:n], addrA, addrB)
		require.False(t, ok, "%d bytes", n)
	}
}
