package icmp

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// message is an ICMP error that quotes a segment of src.
func message(src, dst netip.AddrPort, kind, code byte, mtu uint32) []byte {
	quote := packet.Segment{Src: src, Dst: dst, Seq: 7, Flags: packet.FlagACK}.Append(nil)
	h := packet.Header{Src: dst.Addr(), Dst: src.Addr(), Proto: packet.ProtoICMP, TTL: 64}
	if src.Addr().Is6() {
		h.Proto = packet.ProtoICMPv6
	}
	b := make([]byte, h.Len()+HeaderLen)
	h.Put(b, HeaderLen+len(quote))
	b[h.Len()], b[h.Len()+1] = kind, code
	binary.BigEndian.PutUint32(b[h.Len()+4:], mtu)
	return append(b, quote...)
}

var (
	a4, b4 = netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2")
	a6, b6 = netip.MustParseAddrPort("[fd00::1]:1"), netip.MustParseAddrPort("[fd00::2]:2")
)

func TestRead(t *testing.T) {
	for _, c := range []struct {
		src, dst   netip.AddrPort
		kind, code byte
		said, mtu  uint32
		ok         bool
	}{
		{a4, b4, Unreachable, FragNeeded, 1300, 1300, true},
		{a4, b4, Unreachable, FragNeeded, 551, 0, false},
		{a4, b4, Unreachable, 1, 1300, 0, true},
		{a4, b4, 8, 0, 1300, 0, false},
		{a6, b6, V6TooBig, 0, 1300, 1300, true},
		{a6, b6, V6TooBig, 0, 1279, 0, false},
		{a6, b6, V6TooBig, 0, 1 << 31, 1 << 16, true},
		{a6, b6, V6Unreachable, 0, 0, 0, true},
		{a6, b6, 128, 0, 0, 0, false},
	} {
		b := message(c.src, c.dst, c.kind, c.code, c.said)
		p, err := packet.ParseIP(b)
		require.NoError(t, err)
		e, ok := Read(p, b)
		require.Equal(t, c.ok, ok, "%+v", c)
		if ok {
			require.EqualValues(t, c.mtu, e.MTU)
			require.EqualValues(t, 7, e.Segment.Seq())
			require.Equal(t, c.src.Addr(), e.Quoted.Src())
		}
		for n := range len(p.Header) + HeaderLen + packet.IPv4MinLen {
			_, ok := Read(p, b[:n])
			require.False(t, ok, "%d bytes", n)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(message(a4, b4, Unreachable, FragNeeded, 1300))
	f.Add(message(a6, b6, V6TooBig, 0, 1300))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := packet.ParseIP(b)
		if err != nil {
			return
		}
		if e, ok := Read(p, b); ok {
			require.NotNil(t, e.Segment)
			_ = e.Segment.Seq()
		}
	})
}
