package rsocket

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

var resolveHeaders = headers[ResolveHeader]{
	parse: ParseResolveHeader, refusal: ErrResolveHeader,
	// Worked examples of the protocol reference, and what stock rsockets were seen to send.
	vectors: []headerVector[ResolveHeader]{
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
	},
	malformed: map[string]string{
		"tag":            "55555554 04001000 00000123 0a000001",
		"version":        "55555555 05001000 00000123 0a000001",
		"operation":      "55555555 04011000 00000123 0a000001",
		"length of IPv6": "55555555 04001c00 00000123 0a000001 00000000 00000000 00000000",
		"length of IPv4": "55555555 06001000 00000123 0a000001 00000000 00000000 00000000",
		"length":         "55555555 04001100 00000123 0a000001 00",
	},
}

func TestResolveHeaderVectors(t *testing.T) { resolveHeaders.testVectors(t) }

func TestResolveHeaderTruncated(t *testing.T) { resolveHeaders.testTruncated(t) }

func TestResolveHeaderMalformed(t *testing.T) { resolveHeaders.testMalformed(t) }

func FuzzResolveHeader(f *testing.F) { resolveHeaders.fuzz(f) }

// Bits that mean nothing are not looked at.
func TestResolveHeaderReserved(t *testing.T) {
	b := unhex(t, "55555555 040010fe ff000123 0a000001")
	h, _, err := ParseResolveHeader(b)
	require.NoError(t, err)
	require.Equal(t, resolveHeaders.vectors[0].header, h)
	h.QPN |= 0xff000000
	require.Equal(t, unhex(t, resolveHeaders.vectors[0].bytes), h.Append(nil))
}
