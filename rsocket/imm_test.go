package rsocket

import (
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestImmediateVectors(t *testing.T) {
	for _, tc := range []struct {
		imm  Imm
		wire string
		name string
	}{
		{MakeImm(OpData, 1000), "000003e8", "data 1000"},
		{MakeImm(OpSGL, 384), "80000180", "sgl 384"},
		{MakeImm(OpSGL, 65535), "8000ffff", "sgl 65535"},
		{MakeImm(OpIomapSGL, 5), "c0000005", "iomap 5"},
		{MakeImm(OpCtrl, CtrlDisconnect), "e0000000", "disconnect"},
		{MakeImm(OpCtrl, CtrlShutdown), "e0000002", "shutdown"},
		{MakeImm(OpProbe, 4096), "20001000", "probe 4096"},
		{MakeImm(OpProbe, 4096|probeEcho), "30001000", "probe echo 4096"},
		{MakeImm(OpCtrl, 17), "e0000011", "ctrl 17"},
		{MakeImm(5, 0xffffffff), "bfffffff", "op 5 536870911"},
	} {
		require.Equal(t, tc.wire, hex.EncodeToString(binary.BigEndian.AppendUint32(nil, uint32(tc.imm))))
		require.Equal(t, tc.name, tc.imm.String())
	}
}

// The exchange of the protocol reference: both sides with stock defaults, the client sends 3 × 1000 bytes.
func TestStockExchange(t *testing.T) {
	cfg := Config{Credits: 384, SendDepth: 384}
	c, s := newPair(t, memory(cfg, 131072, 2), memory(cfg, 131072, 2), false, false)
	for _, side := range []*side{c, s} {
		require.Len(t, side.posted, 1, "the second half is granted at once")
		p := side.posted[0]
		require.Equal(t, Imm(0x80000180), p.Imm)
		require.Equal(t, uint64(targetsBase+16), p.RemoteAddr)
		require.Equal(t, uint32(targetsKey), p.RKey)
		require.Equal(t, unhex(t, "0000b100 007f0000 02100000 00000100"), p.payload)
		require.True(t, side.transfer())
	}
	for i := range 3 {
		require.Equal(t, 1000, c.write(1000))
		p := c.posted[len(c.posted)-1]
		require.Equal(t, Imm(0x000003e8), p.Imm)
		require.Equal(t, uint64(ringBase+i*1000), p.RemoteAddr)
		require.Equal(t, uint32(ringKey), p.RKey)
	}
	for c.transfer() {
	}
	for s.receive() {
	}
	require.Equal(t, 3000, s.read(3000))
	require.Empty(t, s.posted, "no credit message yet")
	require.Equal(t, uint64(3), s.recv.consumed)
}

// Credits come back after half of the queue, bare, with an absolute limit.
func TestCreditsAreBatched(t *testing.T) {
	cfg := Config{Credits: 384, SendDepth: 400}
	a, b := newPair(t, memory(cfg, 131072, 2), memory(cfg, 131072, 2), false, false)
	settle(a, b)
	for i := range 192 {
		require.Equal(t, 1, a.write(1))
		a.transfer()
		require.Empty(t, b.posted, i)
		b.receive()
		b.read(1)
	}
	require.Len(t, b.posted, 1)
	require.Equal(t, MakeImm(OpSGL, 192+384), b.posted[0].Imm)
	require.Zero(t, b.posted[0].Length)
}

// Bulk data to a gateway comes back as grants of an eighth of the ring or more, in order, from entry 1 on.
func TestGrantsAreLarge(t *testing.T) {
	const ring = 64 << 10
	cfg := memory(Config{Dialect: Gateway}, ring, 16)
	a, b := newPair(t, cfg, memory(Config{Dialect: Gateway}, ring, 16), false, false)
	require.Empty(t, b.posted, "the whole ring is granted from the start")
	require.Equal(t, ring, a.write(ring))
	a.transfer()
	b.receive()
	for i := range 8 {
		for range 7 {
			b.read(1 << 10)
			require.Empty(t, b.posted)
		}
		b.read(1 << 10)
		require.Len(t, b.posted, 1)
		require.Equal(t, uint64(targetsBase+(1+i)*16), b.posted[0].RemoteAddr)
		g := readGrant(b.posted[0].payload, false)
		require.Equal(t, SGE{Addr: ringBase + uint64(i)*ring/8, Key: ringKey, Length: ring / 8}, g)
		b.transfer()
		b.complete()
	}
	require.Equal(t, uint64(0), a.FreedOffset())
	for a.receive() {
	}
	require.Equal(t, uint64(ring), a.FreedOffset())
}

// What is consumed beyond a multiple of the unit waits for the next grant, so that grants stay aligned.
func TestGrantsStayAligned(t *testing.T) {
	const ring = 64 << 10
	cfg := Config{Dialect: Gateway}
	a, b := newPair(t, memory(cfg, ring, 16), memory(cfg, ring, 16), false, false)
	a.write(ring)
	a.transfer()
	b.receive()
	for _, step := range []struct{ consume, grant int }{{10 << 10, 8 << 10}, {30 << 10, 32 << 10}, {24 << 10, 24 << 10}} {
		b.read(step.consume)
		require.Len(t, b.posted, 1)
		require.Equal(t, uint32(step.grant), readGrant(b.posted[0].payload, false).Length)
		b.transfer()
		b.complete()
	}
}
