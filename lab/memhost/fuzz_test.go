package memhost

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/packet"
)

// fuzzSYN is a SYN without options, IPv4.
var fuzzSYN = []byte("\x45\x00\x00\x28\x00\x00\x40\x00\x40\x06\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02" +
	"\x10\x00\x18\xeb\x00\x00\x00\x01\x00\x00\x00\x00\x50\x02\xff\xff\x00\x00\x00\x00")

// FuzzParseSegment: whatever parses can be marked and stripped, and its
// payload stays as it is.
func FuzzParseSegment(f *testing.F) {
	f.Add(fuzzSYN, false)
	f.Add(append(bytes.Clone(fuzzSYN), "payload"...), true)
	f.Add(append([]byte("\x60\x00\x00\x00\x00\x14\x06\x40"+string(make([]byte, 32))), fuzzSYN[20:]...), false)
	f.Add([]byte{0x45}, true)
	f.Fuzz(func(t *testing.T, pkt []byte, in bool) {
		dir := outbound
		if in {
			dir = inbound
		}
		given := bytes.Clone(pkt)
		s, ok := parseSegment(pkt, dir)
		if !ok {
			return
		}
		require.Len(t, s.raw, s.tcpAt+s.tcpLen+s.payload)
		payload := bytes.Clone(s.raw[s.tcpAt+s.tcpLen:])
		_ = s.carriable()
		_ = s.offers()
		want := packet.Option{Version: packet.OptionVersion, Role: packet.RoleOffer, Nonce: 7}
		if len(pkt) < 2000 && s.addOption(want) {
			o, ok := s.option()
			require.True(t, ok)
			require.Equal(t, want, o)
		}
		s.stripOption()
		require.Equal(t, payload, s.raw[s.tcpAt+s.tcpLen:])
		require.Equal(t, given, pkt, "the packet given was changed")
	})
}
