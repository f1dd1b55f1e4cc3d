package rsocket

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// Worked examples of the protocol reference, and what stock rsockets were seen to send.
var datagramHeaders = []struct {
	source string
	bytes  string
}{
	{"10.0.0.1:40000", "04089c40 0a000001"},
	{"10.77.0.2:7174", "04081c06 0a4d0002"},
	{"[fd00::1]:40000", "06189c40 00000000 fd000000 00000000 00000000 00000001"},
	{"0.0.0.0:0", "04080000 00000000"},
}

func TestDatagramHeaderVectors(t *testing.T) {
	for _, tc := range datagramHeaders {
		h := DatagramHeader{Source: ap(tc.source)}
		want := unhex(t, tc.bytes)
		require.Equal(t, want, h.Append(nil))
		got, payload, err := ParseDatagramHeader(append(want, "payload"...))
		require.NoError(t, err)
		require.Equal(t, h, got)
		require.Equal(t, "payload", string(payload))
	}
}

func TestDatagramHeaderFlowInformationIsIgnored(t *testing.T) {
	b := unhex(t, datagramHeaders[2].bytes)
	copy(b[4:], "flow")
	h, _, err := ParseDatagramHeader(b)
	require.NoError(t, err)
	require.Equal(t, ap("[fd00::1]:40000"), h.Source)
}

func TestDatagramHeaderTruncated(t *testing.T) {
	for _, tc := range datagramHeaders {
		full := unhex(t, tc.bytes)
		for n := range full {
			_, _, err := ParseDatagramHeader(full[:n])
			require.ErrorIs(t, err, ErrDatagramHeader, "%s cut to %d bytes", tc.source, n)
		}
	}
}

func TestDatagramHeaderMalformed(t *testing.T) {
	for _, tc := range []string{
		"05089c40 0a000001", // no such version
		"00000000 00000000",
		"04189c40 00000000 fd000000 00000000 00000000 00000001", // lengths of the other version
		"06089c40 0a000001",
		"04099c40 0a000001 00",
	} {
		_, _, err := ParseDatagramHeader(unhex(t, tc))
		require.ErrorIs(t, err, ErrDatagramHeader, tc)
	}
}

func FuzzDatagramHeader(f *testing.F) {
	for _, tc := range datagramHeaders {
		f.Add(unhex(f, tc.bytes))
		f.Add(append(unhex(f, tc.bytes), 1, 2, 3))
	}
	fuzzHeader(f, ParseDatagramHeader, ErrDatagramHeader)
}

// fuzzHeader checks that a header which is read survives being written, with the same
// payload behind it, and how another one is refused.
func fuzzHeader[H interface{ Append([]byte) []byte }](f *testing.F, parse func([]byte) (H, []byte, error), refusal error) {
	type datagram struct {
		header  H
		payload []byte
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		golden.RoundTrip(t, b, func(b []byte) (d datagram, err error) {
			if d.header, d.payload, err = parse(b); err != nil {
				require.ErrorIs(t, err, refusal)
			}
			return d, err
		}, func(d datagram) []byte { return append(d.header.Append(nil), d.payload...) })
	})
}
