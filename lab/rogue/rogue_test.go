package rogue

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/negotiate"
)

var (
	addrA = netip.MustParseAddrPort("10.0.0.1:40000")
	addrB = netip.MustParseAddrPort("10.0.0.2:7000")
)

// packet is what a raw socket gives of a segment.
func packet(s segment) []byte {
	ip := make([]byte, ipMin)
	ip[0] = 0x45
	return s.append(ip, addrA, addrB)
}

func TestSegment(t *testing.T) {
	want := segment{seq: 1, ack: 2, flags: flagACK | flagPSH, options: timestamps(7, 8), payload: []byte("abc")}
	got, ok := split(packet(want), addrA, addrB)
	require.True(t, ok)
	require.Equal(t, want, got)
	ts, ok := got.stamp()
	require.True(t, ok)
	require.EqualValues(t, 7, ts)
	require.Zero(t, checksum(addrA.Addr(), addrB.Addr(), packet(want)[ipMin:]))
	_, ok = split(packet(want), addrB, addrA)
	require.False(t, ok, "of another connection")
}

func TestSYNIsAnOffer(t *testing.T) {
	pkt := packet(segment{seq: 5, flags: flagSYN, options: synOptions(1, 0xbeef)})
	pkt[2], pkt[3], pkt[9] = byte(len(pkt)>>8), byte(len(pkt)), 6
	copy(pkt[12:], addrA.Addr().AsSlice())
	copy(pkt[16:], addrB.Addr().AsSlice())
	syn, err := negotiate.ParseSYN(pkt)
	require.NoError(t, err)
	require.True(t, syn.Carriable())
	require.Equal(t, option(negotiate.RoleOffer, 0xbeef), syn.Option)
}

func TestSplitTruncated(t *testing.T) {
	whole := packet(segment{options: timestamps(1, 2)})
	for n := range whole {
		_, ok := split(whole[:n], addrA, addrB)
		require.False(t, ok, "%d bytes", n)
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(packet(segment{options: timestamps(1, 2), payload: []byte("x")}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if s, ok := split(b, addrA, addrB); ok {
			_, _ = s.stamp()
		}
	})
}
