package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

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

func TestParseSYNv4(t *testing.T) {
	s, err := ParseSYN(golden.Unhex(t, synV4))
	require.NoError(t, err)
	require.Equal(t, SYN{
		Src: netip.MustParseAddrPort("10.0.0.1:40000"), Dst: netip.MustParseAddrPort("10.0.0.2:6379"),
		Seq: 0x11223344, Flags: FlagSYN, Window: 64240,
		TCPOptions: TCPOptions{
			MSS: 1460, WS: 7, SACK: true, TS: true, TSVal: 0x01020304,
			Option: Option{Version: 1, Role: RoleOffer, Nonce: 0xbeef}, OptionAt: 40,
		},
		IPHeaderLen: 20, TCPHeaderLen: 52,
	}, s)
	require.True(t, s.Carriable())
}

func TestParseSYNv6(t *testing.T) {
	s, err := ParseSYN(golden.Unhex(t, synV6))
	require.NoError(t, err)
	require.Equal(t, SYN{
		Src: netip.MustParseAddrPort("[fd00::1]:40000"), Dst: netip.MustParseAddrPort("[fd00::2]:6379"),
		Seq: 0x11223344, Ack: 0xaabbccdd, Flags: FlagSYN | FlagACK, Window: 64240,
		TCPOptions: TCPOptions{
			MSS: 1440, WS: 10, SACK: true, TS: true, TSVal: 0x01020304, TSEcr: 0x05060708,
			Option: Option{Version: 1, Role: RoleAccept, Nonce: 0xbeef}, OptionAt: 40,
		},
		IPHeaderLen: 40, TCPHeaderLen: 52,
	}, s)
}

func TestParseSYNv6Extension(t *testing.T) {
	pkt := golden.Unhex(t, synV6)
	ext := append(bytes.Clone(pkt[:40]), 6, 0, 1, 4, 0, 0, 0, 0) // hop-by-hop, padded
	ext = append(ext, pkt[40:]...)
	ext[6] = extHopByHop
	binary.BigEndian.PutUint16(ext[4:], 60)
	s, err := ParseSYN(ext)
	require.NoError(t, err)
	require.Equal(t, 48, s.IPHeaderLen)
	require.Equal(t, 40, s.OptionAt)
	ext[6] = extFragment
	_, err = ParseSYN(ext)
	require.ErrorIs(t, err, ErrFragment)
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

func TestParseSYNNotCarriable(t *testing.T) {
	ts := `08 0a 00 00 00 01 00 00 00 00 01 01`
	for name, c := range map[string]struct {
		flags byte
		text  string
		is    func(SYN) bool
	}{
		"mptcp":         {FlagSYN, ts + `1e 0c 01 81 00 00 00 00 00 00 00 00`, func(s SYN) bool { return s.MPTCP }},
		"tfo":           {FlagSYN, ts + `22 02 01 01`, func(s SYN) bool { return s.TFO }},
		"tfo exid":      {FlagSYN, ts + `fe 04 f9 89`, func(s SYN) bool { return s.TFO }},
		"md5":           {FlagSYN, ts + `13 12` + zeros(16) + `01 01`, func(s SYN) bool { return s.MD5 }},
		"ao":            {FlagSYN, ts + `1d 10` + zeros(14), func(s SYN) bool { return s.AO }},
		"ecn":           {FlagSYN | FlagECE | FlagCWR, ts, func(s SYN) bool { return s.ECN }},
		"ecn syn-ack":   {FlagSYN | FlagACK | FlagECE, ts, func(s SYN) bool { return s.ECN }},
		"no timestamps": {FlagSYN, `02 04 05 b4`, func(s SYN) bool { return !s.TS && s.WS == -1 && !s.SACK }},
		"nothing":       {FlagSYN, ``, func(s SYN) bool { return s.MSS == 0 }},
		"broken":        {FlagSYN, `02 00 08 0a`, func(s SYN) bool { return s.MSS == 0 && !s.TS }},
	} {
		s, err := ParseSYN(withOptions(t, c.flags, c.text))
		require.NoError(t, err, name)
		require.True(t, c.is(s), name)
		require.False(t, s.Carriable(), name)
		require.Zero(t, s.OptionAt, name)
	}
}

func zeros(n int) (s string) {
	for range n {
		s += "00"
	}
	return s
}

func TestParseSYNPayload(t *testing.T) {
	pkt := golden.Unhex(t, synV4)
	binary.BigEndian.PutUint16(pkt[2:], 72+100) // recorded SYNs are cut after the headers
	s, err := ParseSYN(pkt)
	require.NoError(t, err)
	require.Equal(t, 100, s.PayloadLen)
	require.False(t, s.Carriable())
}

func TestParseSYNRejected(t *testing.T) {
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
		"ack only":         {ErrNotSYN, func(b []byte) []byte { b[33] = FlagACK; return b }},
		"empty":            {ErrTruncated, func([]byte) []byte { return nil }},
	} {
		_, err := ParseSYN(c.spoil(golden.Unhex(t, synV4)))
		require.ErrorIs(t, err, c.want, name)
	}
}

func TestSYNTruncated(t *testing.T) {
	for _, text := range []string{synV4, synV6} {
		pkt := golden.Unhex(t, text)
		for i := range pkt {
			_, err := ParseSYN(pkt[:i])
			require.ErrorIs(t, err, ErrTruncated, "prefix of %d", i)
		}
	}
}

func TestSYNAllocs(t *testing.T) {
	v4, v6 := golden.Unhex(t, synV4), golden.Unhex(t, synV6)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = ParseSYN(v4)
		_, _ = ParseSYN(v6)
		_ = SetTCPChecksum(v4)
	}))
}

func FuzzParseSYN(f *testing.F) {
	f.Add(golden.Unhex(f, synV4))
	f.Add(golden.Unhex(f, synV6))
	f.Fuzz(func(t *testing.T, pkt []byte) {
		s, err := ParseSYN(pkt)
		if err == nil && s.OptionAt != 0 {
			at := s.IPHeaderLen + s.OptionAt
			require.Equal(t, AppendOption(nil, s.Option), pkt[at:at+OptionLen])
		}
		before := bytes.Clone(pkt)
		stripped, err := StripOption(pkt)
		require.Equal(t, stripped, !bytes.Equal(before, pkt))
		if err == nil {
			require.True(t, stripped || s.OptionAt == 0)
			again, err := StripOption(pkt)
			require.NoError(t, err)
			require.False(t, again)
		}
		if SetTCPChecksum(pkt) == nil {
			requireChecksum(t, pkt)
		}
	})
}
