package rsocket

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// Worked examples of the protocol reference, and what stock rsockets were seen to send.
var resolveHeaders = []struct {
	header ResolveHeader
	bytes  string
}{
	{ResolveHeader{Op: ResolveData, QPN: 0x123, Addr: netip.MustParseAddr("10.0.0.1")}, "55555555 04001000 00000123 0a000001"},
	{ResolveHeader{Op: ResolveData, QPN: 0x12, Addr: netip.MustParseAddr("10.77.0.3")}, "55555555 04001000 00000012 0a4d0003"},
	{ResolveHeader{Op: ResolveCtrl, QPN: 0x12, Addr: netip.MustParseAddr("10.77.0.2")}, "55555555 04071000 00000012 0a4d0002"},
	{
		ResolveHeader{Op: ResolveCtrl, QPN: 0xffffff, Addr: netip.MustParseAddr("fd77::2")},
		"55555555 06071c00 00ffffff fd770000 00000000 00000000 00000002",
	},
	{
		ResolveHeader{Op: ResolveData, QPN: 0x123, Probes: true, Addr: netip.MustParseAddr("10.0.0.1")},
		"55555555 04001001 00000123 0a000001",
	},
	// A stock rsocket at fd77::2, flow information 0.
	{
		ResolveHeader{Op: ResolveData, QPN: 0x11, Addr: netip.MustParseAddr("0:0:fd77::")},
		"55555555 06001c00 00000011 00000000 fd770000 00000000 00000000",
	},
}

func TestResolveHeaderVectors(t *testing.T) {
	for _, tc := range resolveHeaders {
		want := unhex(t, tc.bytes)
		require.Equal(t, want, tc.header.Append(nil))
		got, payload, err := ParseResolveHeader(append(want, "payload"...))
		require.NoError(t, err)
		require.Equal(t, tc.header, got)
		require.Equal(t, "payload", string(payload))
	}
}

// Bits that mean nothing are not looked at.
func TestResolveHeaderReserved(t *testing.T) {
	b := unhex(t, "55555555 040010fe ff000123 0a000001")
	h, _, err := ParseResolveHeader(b)
	require.NoError(t, err)
	require.Equal(t, resolveHeaders[0].header, h)
	h.QPN |= 0xff000000
	require.Equal(t, unhex(t, resolveHeaders[0].bytes), h.Append(nil))
}

func TestResolveHeaderTruncated(t *testing.T) {
	for _, tc := range resolveHeaders {
		full := unhex(t, tc.bytes)
		for n := range full {
			_, _, err := ParseResolveHeader(full[:n])
			require.ErrorIs(t, err, ErrResolveHeader, "%v cut to %d bytes", tc.header, n)
		}
	}
}

func TestResolveHeaderMalformed(t *testing.T) {
	for _, tc := range []string{
		"55555554 04001000 00000123 0a000001",                            // tag
		"55555555 05001000 00000123 0a000001",                            // version
		"55555555 04011000 00000123 0a000001",                            // operation
		"55555555 04001c00 00000123 0a000001 00000000 00000000 00000000", // lengths of the other version
		"55555555 06001000 00000123 0a000001 00000000 00000000 00000000",
		"55555555 04001100 00000123 0a000001 00",
	} {
		_, _, err := ParseResolveHeader(unhex(t, tc))
		require.ErrorIs(t, err, ErrResolveHeader, tc)
	}
}

func FuzzResolveHeader(f *testing.F) {
	for _, tc := range resolveHeaders {
		f.Add(unhex(f, tc.bytes))
		f.Add(append(unhex(f, tc.bytes), 1, 2, 3))
	}
	fuzzHeader(f, ParseResolveHeader, ErrResolveHeader)
}
