package packet

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

// A query of DNS over IPv4, made by hand.
const udpV4 = `
45 00 00 21 00 00 40 00 40 11 26 ca              ; IPv4, 33 bytes, DF, TTL 64, UDP
0a 00 00 01  0a 00 00 02                         ; 10.0.0.1 > 10.0.0.2
9c 40 00 35  00 0d 0b 8a                         ; port 40000 > 53, 13 bytes, checksum
68 65 6c 6c 6f                                   ; "hello"
`

func TestUDPVector(t *testing.T) {
	want := golden.Unhex(t, udpV4)
	p, err := ParseIP(want)
	require.NoError(t, err)
	require.True(t, p.Plain() && p.Whole() && p.HeaderSumOK() && p.TransportSumOK())
	require.EqualValues(t, 64, p.TTL())
	u, payload, err := p.UDP()
	require.NoError(t, err)
	require.EqualValues(t, 40000, u.SrcPort())
	require.EqualValues(t, 53, u.DstPort())
	require.Equal(t, "hello", string(payload))

	b := make([]byte, IPv4MinLen+UDPLen, 64)
	h := Header{Src: p.Src(), Dst: p.Dst(), Proto: ProtoUDP, TTL: 64}
	require.Equal(t, IPv4MinLen, h.Put(b, UDPLen+5))
	out := UDP(b[IPv4MinLen:])
	out.Put(40000, 53, 5)
	b = append(b, "hello"...)
	out.SetChecksum(^Sum(b[IPv4MinLen:], PseudoSum(b[:IPv4MinLen], ProtoUDP, UDPLen+5)))
	require.Equal(t, want, b)
	for i := range want {
		q, err := ParseIP(want[:i])
		if err == nil {
			_, _, err = q.UDP()
		}
		require.ErrorIs(t, err, ErrTruncated, "prefix of %d", i)
	}
}

func TestSegmentThereAndBack(t *testing.T) {
	for _, ends := range [][2]string{{"10.0.0.1:40000", "10.0.0.2:6379"}, {"[fd00::1]:40000", "[fd00::2]:6379"}} {
		for _, payload := range []string{"", "x", "payload"} {
			s := Segment{
				Src: netip.MustParseAddrPort(ends[0]), Dst: netip.MustParseAddrPort(ends[1]),
				Seq: 1 << 31, Ack: 77, Flags: FlagACK | FlagPSH, Window: 4096,
				Options: []byte{KindNOP, KindNOP, KindTimestamps, TimestampsLen, 0, 0, 0, 1, 0, 0, 0, 2}, Payload: []byte(payload),
			}
			pkt := s.Append(nil)
			got, err := ParseSegment(pkt)
			require.NoError(t, err)
			require.Equal(t, s, got)
			p, err := ParseIP(append(pkt, 0, 0, 0)) // padding of Ethernet
			require.NoError(t, err)
			require.True(t, p.Whole() && p.HeaderSumOK() && p.TransportSumOK())
		}
	}
}

func TestSegmentTruncated(t *testing.T) {
	for _, text := range []string{synV4, synV6} {
		pkt := golden.Unhex(t, text)
		for i := range pkt {
			_, err := ParseSegment(pkt[:i])
			require.ErrorIs(t, err, ErrTruncated, "prefix of %d", i)
		}
	}
}

func TestQuotedTruncated(t *testing.T) {
	for _, text := range []string{synV4, synV6} {
		pkt := golden.Unhex(t, text)
		whole, err := ParseIP(pkt)
		require.NoError(t, err)
		least := len(whole.Header) + quotedLen
		for i := range pkt {
			p, err := ParseQuoted(pkt[:i])
			if i < least {
				require.ErrorIs(t, err, ErrTruncated, "prefix of %d", i)
				continue
			}
			require.NoError(t, err)
			require.EqualValues(t, 0x11223344, TCP(p.Payload).Seq())
			require.EqualValues(t, 40000, TCP(p.Payload).SrcPort())
		}
	}
	pkt := golden.Unhex(t, synV4)
	pkt[6] = 0x20 // the first fragment
	_, err := ParseQuoted(pkt)
	require.NoError(t, err)
	pkt[7] = 1
	_, err = ParseQuoted(pkt)
	require.ErrorIs(t, err, ErrFragment)
}

// What the look of a socket is read from: DSCP and ECN, TTL.
func TestTOS(t *testing.T) {
	v4, v6 := golden.Unhex(t, synV4), golden.Unhex(t, synV6)
	v4[1], v6[0], v6[1] = 0xb9, 0x6b, 0x90
	for _, pkt := range [][]byte{v4, v6} {
		p, err := ParseIP(pkt)
		require.NoError(t, err)
		require.EqualValues(t, 0xb9, p.TOS())
		require.EqualValues(t, 64, p.TTL())
	}
}

func TestOptionsWithoutSACK(t *testing.T) {
	l := OptionList{KindNOP, KindNOP, KindSACK, 10, 1, 2, 3, 4, 5, 6, 7, 8, KindWindowScale, 3, 7, KindEOL}
	require.Equal(t, []byte{9, KindWindowScale, 3, 7, KindNOP}, l.AppendWithoutSACK([]byte{9}))
	l.Blank(KindSACK)
	require.Equal(t, TCPOptions{WS: 7}, ParseTCPOptions(l))
	require.Equal(t, uint16(defaultMSS), (&TCPOptions{}).PeerMSS())
}

// FuzzParseTCPOptions: whatever a list holds, what is read of it is in bounds, and editing keeps the rest.
func FuzzParseTCPOptions(f *testing.F) {
	syn := golden.Unhex(f, synV4)
	f.Add(syn[40:])
	f.Add([]byte{KindSACK, 34, 1, 2, 3, 4})
	f.Add([]byte{KindTimestamps, 1})
	f.Add([]byte{KindMSS})
	f.Fuzz(func(t *testing.T, area []byte) {
		l := OptionList(area)
		o := ParseTCPOptions(l)
		require.GreaterOrEqual(t, o.WS, int8(-1))
		require.LessOrEqual(t, o.WS, int8(maxWindowScale))
		ours, at, err := ParseOption(area)
		require.Equal(t, o.OptionAt != 0, err == nil)
		if err == nil {
			require.Equal(t, o.Option, ours)
			require.Equal(t, o.OptionAt, TCPMinLen+at)
		}
		short := l.AppendWithoutSACK(nil)
		require.Zero(t, len(short)%4)
		again := ParseTCPOptions(short)
		again.OptionAt, o.OptionAt = 0, 0
		require.Equal(t, o, again)
		l.Blank(KindTimestamps)
		require.False(t, ParseTCPOptions(l).TS)
	})
}

// FuzzParseIP reads any bytes as a packet, and what an ICMP error quotes.
func FuzzParseIP(f *testing.F) {
	for _, text := range []string{synV4, synV6, udpV4} {
		f.Add(golden.Unhex(f, text))
	}
	f.Add([]byte{0x60, 0, 0, 0, 0, 8, 0, 64, 40: 6, 47: 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseIP(b)
		q, quoted := ParseQuoted(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(p.Header)+len(p.Payload), p.Total)
		require.Equal(t, b[:len(p.Header)], p.Header)
		require.Equal(t, p.V6(), p.Src().Is6())
		if quoted == nil {
			require.Equal(t, p.Header, q.Header)
			require.Equal(t, p.Payload, q.Payload[:len(p.Payload)])
		}
		if _, payload, err := p.UDP(); err == nil {
			require.Equal(t, p.Total, len(p.Header)+UDPLen+len(payload))
		}
		if s, err := ParseSegment(b); err == nil {
			h, _ := p.TCP()
			require.Len(t, p.Payload, len(h)+len(s.Payload))
			again, err := ParseSegment(s.Append(nil))
			require.NoError(t, err)
			require.Equal(t, s.Seq, again.Seq)
			require.Equal(t, len(s.Payload), len(again.Payload))
		}
		if p.Whole() {
			header := append([]byte(nil), p.Header...)
			SetPayloadLen(header, len(p.Payload))
			require.Equal(t, p.Total, mustIP(t, append(header, p.Payload...)).Total)
			require.True(t, mustIP(t, append(header, p.Payload...)).HeaderSumOK())
		}
	})
}

func mustIP(t *testing.T, b []byte) *IP {
	p, err := ParseIP(b)
	require.NoError(t, err)
	return &p
}

// Nothing of the data path allocates.
func TestAllocs(t *testing.T) {
	syn, udp := golden.Unhex(t, synV4), golden.Unhex(t, udpV4)
	s, err := ParseSegment(golden.Unhex(t, synV6))
	require.NoError(t, err)
	buf := make([]byte, 0, 128)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = ParseSegment(syn)
		p, _ := ParseIP(udp)
		_, _, _ = p.UDP()
		_ = p.TransportSumOK()
		_, _ = ParseQuoted(syn)
		_, _ = StripOption(syn)
		buf = s.Append(buf[:0])
		l := TCP(buf[IPv6Len : IPv6Len+52]).Options()
		l.Blank(KindSACK)
		buf = l.AppendWithoutSACK(buf[:92])
	}))
}

func BenchmarkParseSegment(b *testing.B) {
	pkt := golden.Unhex(b, synV4)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = ParseSegment(pkt)
	}
}

// BenchmarkTranslate is what the wire leg does to a segment with timestamps.
func BenchmarkTranslate(b *testing.B) {
	pkt := golden.Unhex(b, synV4)
	b.ReportAllocs()
	for b.Loop() {
		p, _ := ParseIP(pkt)
		t, _ := p.TCP()
		e := Editor{TCP: t}
		e.Put32(4, t.Seq()+1)
		for at, o := range t.Options().All() {
			if o.Kind() == KindTimestamps && len(o) == TimestampsLen {
				e.Put32(TCPMinLen+at+2, binary.BigEndian.Uint32(o.Value())+1)
			}
		}
		e.Finish()
	}
}
