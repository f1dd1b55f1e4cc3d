package rsocket

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/internal/golden"
)

// TestProtocolVectors: every vector of docs/protocol/rsocket.md.
func TestProtocolVectors(t *testing.T) {
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
	vectors := map[string][]byte{
		"rsocket-connection-data":       exampleConn().Append(nil),
		"rsocket-immediates":            imms,
		"rsocket-grant-little-endian":   little[:],
		"rsocket-grant-big-endian":      big[:],
		"rsocket-mapping-little-endian": mapped[:],
		"rsocket-resolution-data":       append(ResolveHeader{Op: ResolveData, QPN: 0x123, Probes: true, Addr: four}.Append(nil), hello...),
		"rsocket-resolution-answer":     ResolveHeader{Op: ResolveCtrl, QPN: 0x12, Addr: six}.Append(nil),
		"rsocket-datagram-4":            append(DatagramHeader{Source: netip.AddrPortFrom(four, 40000)}.Append(nil), hello...),
		"rsocket-datagram-6":            append(DatagramHeader{Source: netip.AddrPortFrom(six, 40000)}.Append(nil), hello...),
	}
	for _, name := range golden.Names(t, "rsocket-") {
		require.Equal(t, vectors[name], golden.Vector(t, name), name)
	}
	require.Len(t, vectors, len(golden.Names(t, "rsocket-")))
	require.Equal(t, grant, readGrant(little[:], false))
	require.Equal(t, grant, readGrant(big[:], true))
	got, err := ParseConnData(vectors["rsocket-connection-data"])
	require.NoError(t, err)
	require.Equal(t, exampleConn(), got)
}
