package netstack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// icmpMessage is an ICMP error that quotes a segment of src.
func icmpMessage(src, dst netip.AddrPort, kind, code byte, mtu uint32) []byte {
	quote := packet.Segment{Src: src, Dst: dst, Seq: 7, Flags: packet.FlagACK}.Append(nil)
	h := packet.Header{Src: dst.Addr(), Dst: src.Addr(), Proto: packet.ProtoICMP, TTL: 64}
	if src.Addr().Is6() {
		h.Proto = packet.ProtoICMPv6
	}
	b := make([]byte, h.Len()+icmpHeaderLen)
	h.Put(b, icmpHeaderLen+len(quote))
	b[h.Len()], b[h.Len()+1] = kind, code
	binary.BigEndian.PutUint32(b[h.Len()+4:], mtu)
	return append(b, quote...)
}

var (
	a4, b4 = netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2")
	a6, b6 = netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2")
)

func TestReadICMP(t *testing.T) {
	for _, c := range []struct {
		src, dst   netip.AddrPort
		kind, code byte
		said, mtu  uint32
		ok         bool
	}{
		{a4, b4, icmpUnreachable, icmpFragNeeded, 1300, 1300, true},
		{a4, b4, icmpUnreachable, icmpFragNeeded, 551, 0, false},
		{a4, b4, icmpUnreachable, 1, 1300, 0, true},
		{a4, b4, 8, 0, 1300, 0, false},
		{a6, b6, icmpV6TooBig, 0, 1300, 1300, true},
		{a6, b6, icmpV6TooBig, 0, 1279, 0, false},
		{a6, b6, icmpV6TooBig, 0, 1 << 31, 1 << 16, true},
		{a6, b6, icmpV6Unreachable, 0, 0, 0, true},
		{a6, b6, 128, 0, 0, 0, false},
	} {
		b := icmpMessage(c.src, c.dst, c.kind, c.code, c.said)
		p, err := packet.ParseIP(b)
		require.NoError(t, err)
		e, ok := readICMP(p, b)
		require.Equal(t, c.ok, ok, "%+v", c)
		if ok {
			require.EqualValues(t, c.mtu, e.mtu)
			require.EqualValues(t, 7, e.segment.Seq())
			require.Equal(t, c.src.Addr(), e.quoted.Src())
		}
		for n := range len(p.Header) + icmpHeaderLen + packet.IPv4MinLen {
			_, ok := readICMP(p, b[:n])
			require.False(t, ok, "%d bytes", n)
		}
	}
}

func FuzzICMP(f *testing.F) {
	f.Add(icmpMessage(a4, b4, icmpUnreachable, icmpFragNeeded, 1300))
	f.Add(icmpMessage(a6, b6, icmpV6TooBig, 0, 1300))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := packet.ParseIP(b)
		if err != nil {
			return
		}
		if e, ok := readICMP(p, b); ok {
			require.NotNil(t, e.segment)
			_ = e.segment.Seq()
		}
	})
}
