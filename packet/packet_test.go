package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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

// The SYN of a Linux client (MSS, SACK, TS, NOP, WS 7) with our offer and two NOPs, captured layout, made by hand.
const synV4 = `
45 00 00 48 12 34 40 00 40 06 00 00              ; IPv4, 72 bytes, DF, TCP (header checksum left out)
0a 00 00 01  0a 00 00 02                         ; 10.0.0.1 > 10.0.0.2
9c 40 18 eb                                      ; port 40000 > 6379
11 22 33 44  00 00 00 00                         ; seq, ack
d0 02 fa f0                                      ; header 52 bytes, SYN, window 64240
00 00 00 00                                      ; checksum, urgent
02 04 05 b4  04 02                               ; MSS 1460, SACK permitted
08 0a 01 02 03 04 00 00 00 00                    ; timestamps
01 03 03 07                                      ; NOP, WS 7
fe 0a 53 4d 47 57 11 00 be ef                    ; offer
01 01                                            ; NOPs
`

const synV6 = `
60 00 00 00  00 34 06 40                         ; IPv6, 52 bytes of payload, TCP
fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01
fd 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02
9c 40 18 eb  11 22 33 44  aa bb cc dd            ; ports, seq, ack
d0 12 fa f0  00 00 00 00                         ; SYN, ACK
02 04 05 a0  04 02
08 0a 01 02 03 04 05 06 07 08
01 03 03 0a
fe 0a 53 4d 47 57 12 00 be ef                    ; accept
01 01
`

func TestParseSegment(t *testing.T) {
	for text, want := range map[string]struct {
		Segment
		TCPOptions
	}{
		synV4: {
			Segment{
				Src: netip.MustParseAddrPort("10.0.0.1:40000"), Dst: netip.MustParseAddrPort("10.0.0.2:6379"),
				Seq: 0x11223344, Flags: FlagSYN, Window: 64240, Payload: []byte{},
			},
			TCPOptions{MSS: 1460, WS: 7, SACK: true, TS: true, TSVal: 0x01020304, Option: Option{Version: 1, Role: RoleOffer, Nonce: 0xbeef}},
		},
		synV6: {
			Segment{
				Src: netip.MustParseAddrPort("[fd00::1]:40000"), Dst: netip.MustParseAddrPort("[fd00::2]:6379"),
				Seq: 0x11223344, Ack: 0xaabbccdd, Flags: FlagSYN | FlagACK, Window: 64240, Payload: []byte{},
			},
			TCPOptions{
				MSS: 1440, WS: 10, SACK: true, TS: true, TSVal: 0x01020304, TSEcr: 0x05060708,
				Option: Option{Version: 1, Role: RoleAccept, Nonce: 0xbeef},
			},
		},
	} {
		pkt := golden.Unhex(t, text)
		s, err := ParseSegment(pkt)
		require.NoError(t, err)
		require.Equal(t, pkt[len(pkt)-len(s.Options):], s.Options)
		require.Equal(t, want.TCPOptions, ParseTCPOptions(s.Options))
		s.Options = nil
		require.Equal(t, want.Segment, s)
	}
}

func TestParseSegmentExtension(t *testing.T) {
	pkt := golden.Unhex(t, synV6)
	ext := append(bytes.Clone(pkt[:40]), 6, 0, 1, 4, 0, 0, 0, 0) // hop-by-hop, padded
	ext = append(ext, pkt[40:]...)
	ext[6] = extHopByHop
	binary.BigEndian.PutUint16(ext[4:], 60)
	want, err := ParseSegment(pkt)
	require.NoError(t, err)
	s, err := ParseSegment(ext)
	require.NoError(t, err)
	require.Equal(t, want, s)
	require.Len(t, mustIP(t, ext).Header, 48)
	ext[6] = extFragment
	_, err = ParseSegment(ext)
	require.ErrorIs(t, err, ErrFragment)
}

func TestParseSegmentRejected(t *testing.T) {
	for name, c := range map[string]struct {
		want  error
		spoil func(b []byte) []byte
	}{
		"version 5":        {ErrMalformed, func(b []byte) []byte { b[0] = 0x55; return b }},
		"ihl 4":            {ErrMalformed, func(b []byte) []byte { b[0] = 0x44; return b }},
		"udp":              {ErrProtocol, func(b []byte) []byte { b[9] = 17; return b }},
		"more fragments":   {ErrFragment, func(b []byte) []byte { b[6] = 0x20; return b }},
		"fragment offset":  {ErrFragment, func(b []byte) []byte { b[7] = 1; return b }},
		"total length":     {ErrMalformed, func(b []byte) []byte { b[2], b[3] = 0, 60; return b }},
		"total length 19":  {ErrMalformed, func(b []byte) []byte { b[2], b[3] = 0, 19; return b }},
		"data offset 4":    {ErrMalformed, func(b []byte) []byte { b[32] = 0x40; return b }},
		"data offset long": {ErrMalformed, func(b []byte) []byte { b[32] = 0xf0; return b }},
		"empty":            {ErrTruncated, func([]byte) []byte { return nil }},
	} {
		_, err := ParseSegment(c.spoil(golden.Unhex(t, synV4)))
		require.ErrorIs(t, err, c.want, name)
	}
}

// Recorded SYNs are cut after the headers.
func TestPayloadCut(t *testing.T) {
	pkt := golden.Unhex(t, synV4)
	binary.BigEndian.PutUint16(pkt[2:], 72+100)
	p := mustIP(t, pkt)
	require.Equal(t, 172, p.Total)
	require.False(t, p.Whole())
	s, err := ParseSegment(pkt)
	require.NoError(t, err)
	require.Empty(t, s.Payload)
}

// withOptions returns synV4 with another options area (a multiple of four bytes).
func withOptions(t testing.TB, flags byte, text string) []byte {
	options := golden.Unhex(t, text)
	pkt := append(bytes.Clone(golden.Unhex(t, synV4)[:40]), options...)
	binary.BigEndian.PutUint16(pkt[2:], uint16(len(pkt)))
	pkt[32] = byte(20+len(options)) / 4 << 4
	pkt[33] = flags
	return pkt
}

func TestOptionsAbsent(t *testing.T) {
	for _, text := range []string{``, `02 00 08 0a`, `fe 04 f9 89`, `1e 0c 01 81 00 00 00 00 00 00 00 00`} {
		require.Equal(t, TCPOptions{WS: -1}, ParseTCPOptions(golden.Unhex(t, text)), text)
	}
	require.Equal(t, TCPOptions{WS: -1, MSS: 1460}, ParseTCPOptions(golden.Unhex(t, `02 04 05 b4`)))
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
		if o.Option.Role != 0 {
			require.True(t, bytes.Contains(area, AppendOption(nil, o.Option)))
		}
		short := l.AppendWithoutSACK(nil)
		require.Zero(t, len(short)%4)
		require.Equal(t, o, ParseTCPOptions(short))
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
		_ = SetTCPChecksum(syn)
		p, _ := ParseIP(udp)
		_, _, _ = p.UDP()
		_ = p.TransportSumOK()
		_, _ = ParseQuoted(syn)
		_, _ = StripOption(syn)
		buf = s.Append(buf[:0])
		l := TCP(buf[IPv6Len : IPv6Len+52]).Options()
		_ = ParseTCPOptions(l)
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
