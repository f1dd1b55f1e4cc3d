package rsocket

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documented reads a byte vector of the protocol's document.
func documented(t *testing.T, doc, name string) []byte {
	t.Helper()
	_, rest, ok := strings.Cut(doc, "`"+name+"`:\n\n```\n")
	require.True(t, ok, "vector %s", name)
	text, _, ok := strings.Cut(rest, "```\n")
	require.True(t, ok, "vector %s has no end", name)
	var digits strings.Builder
	for line := range strings.Lines(text) {
		data, _, _ := strings.Cut(line, ";")
		for f := range strings.FieldsSeq(data) {
			digits.WriteString(f)
		}
	}
	b, err := hex.DecodeString(digits.String())
	require.NoError(t, err, name)
	return b
}

// The document says what the code does.
func TestProtocolDocument(t *testing.T) {
	text, err := os.ReadFile("../docs/PROTOCOL.md")
	require.NoError(t, err)
	doc := string(text)
	hello := []byte("hello")
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	grant := SGE{Addr: 0x7f0000b10000, Key: 0x1002, Length: 65536}
	mapping := IOMapping{Region: SGE{Addr: 0x7f0000c00000, Key: 0x1003, Length: 4096}}
	var imms []byte
	for _, imm := range []Imm{
		MakeImm(OpData, 1000), MakeImm(OpSGL, 384), MakeImm(OpIomapSGL, 5), MakeImm(OpCtrl, CtrlDisconnect), MakeImm(OpCtrl, CtrlShutdown),
	} {
		imms = binary.BigEndian.AppendUint32(imms, uint32(imm))
	}
	little, big := grantBytes(grant, false), grantBytes(grant, true)
	mapped := iomapBytes(mapping, false)
	for name, want := range map[string][]byte{
		"rsocket-connection-data":       exampleConn().Append(nil),
		"rsocket-immediates":            imms,
		"rsocket-grant-little-endian":   little[:],
		"rsocket-grant-big-endian":      big[:],
		"rsocket-mapping-little-endian": mapped[:],
		"rsocket-resolution-data":       append(ResolveHeader{Op: ResolveData, QPN: 0x123, Probes: true, Addr: four}.Append(nil), hello...),
		"rsocket-resolution-answer":     ResolveHeader{Op: ResolveCtrl, QPN: 0x12, Addr: six}.Append(nil),
		"rsocket-datagram-4":            append(DatagramHeader{Source: netip.AddrPortFrom(four, 40000)}.Append(nil), hello...),
		"rsocket-datagram-6":            append(DatagramHeader{Source: netip.AddrPortFrom(six, 40000)}.Append(nil), hello...),
	} {
		require.Equal(t, want, documented(t, doc, name), name)
		require.Equal(t, 1, strings.Count(doc, "`"+name+"`:"), name)
	}
	require.Equal(t, 9, bytes.Count(text, []byte("\n`rsocket-")), "vectors that are compared with nothing")
}
