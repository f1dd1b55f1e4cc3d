package rsocket

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

var datagramHeaders = headers[DatagramHeader]{
	parse: ParseDatagramHeader, refusal: ErrDatagramHeader,
	// Worked examples of the protocol reference, and what stock rsockets were seen to send.
	vectors: []headerVector[DatagramHeader]{
		{DatagramHeader{Source: ap("10.0.0.1:40000")}, "04089c40 0a000001"},
		{DatagramHeader{Source: ap("10.77.0.2:7174")}, "04081c06 0a4d0002"},
		{DatagramHeader{Source: ap("[fd00::1]:40000")}, "06189c40 00000000 fd000000 00000000 00000000 00000001"},
		{DatagramHeader{Source: ap("0.0.0.0:0")}, "04080000 00000000"},
	},
	malformed: map[string]string{
		"no such version": "05089c40 0a000001",
		"no version":      "00000000 00000000",
		"length of IPv6":  "04189c40 00000000 fd000000 00000000 00000000 00000001",
		"length of IPv4":  "06089c40 0a000001",
		"length":          "04099c40 0a000001 00",
	},
}

func TestDatagramHeaderVectors(t *testing.T) { datagramHeaders.testVectors(t) }

func TestDatagramHeaderTruncated(t *testing.T) { datagramHeaders.testTruncated(t) }

func TestDatagramHeaderMalformed(t *testing.T) { datagramHeaders.testMalformed(t) }

func FuzzDatagramHeader(f *testing.F) { datagramHeaders.fuzz(f) }

func TestDatagramHeaderFlowInformationIsIgnored(t *testing.T) {
	b := unhex(t, datagramHeaders.vectors[2].bytes)
	copy(b[4:], "flow")
	h, _, err := ParseDatagramHeader(b)
	require.NoError(t, err)
	require.Equal(t, ap("[fd00::1]:40000"), h.Source)
}
