package rsocket

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostile is what a peer might do wrong: prepare brings a victim into position, then the message arrives.
type hostile struct {
	name    string
	dialect Dialect
	prepare func(victim, peer *side)
	imm     Imm
	length  uint32
	want    Violation
}

// grantEntry puts a grant where the victim reads the next one.
func grantEntry(g SGE) func(victim, peer *side) {
	return func(victim, _ *side) {
		b := grantBytes(g, false)
		copy(victim.cfg.Targets[victim.send.slot*sgeSize:], b[:])
	}
}

// usedUp has the victim send the peer's whole ring of 64 bytes first, so that a grant is in order.
func usedUp(next func(victim, peer *side)) func(victim, peer *side) {
	return func(victim, peer *side) {
		victim.write(64)
		next(victim, peer)
	}
}

func hostilePeers() []hostile {
	sgl := MakeImm(OpSGL, 8)
	return []hostile{
		{"reserved op", Gateway, nil, MakeImm(5, 0), 0, ViolationImmediate},
		{"riowrite op", Gateway, nil, MakeImm(2, 1), 1, ViolationImmediate},
		{"direct placement without slots", Stock, nil, MakeImm(OpIomapSGL, 0), 24, ViolationImmediate},
		{"keepalive code", Gateway, nil, MakeImm(OpCtrl, 1), 0, ViolationImmediate},
		{"unknown control", Gateway, nil, MakeImm(OpCtrl, 99), 0, ViolationImmediate},
		{"control with bytes", Gateway, nil, MakeImm(OpCtrl, CtrlShutdown), 1, ViolationLength},
		{"empty data", Gateway, nil, MakeImm(OpData, 0), 0, ViolationLength},
		{"more announced than written", Gateway, nil, MakeImm(OpData, 10), 9, ViolationLength},
		{"less announced than written", Gateway, nil, MakeImm(OpData, 10), 11, ViolationLength},
		{"beyond the ring", Gateway, nil, MakeImm(OpData, 65), 65, ViolationData},
		{"beyond any ring", Gateway, nil, MakeImm(OpData, immMask), immMask, ViolationData},
		{"beyond half of a stock ring", Stock, nil, MakeImm(OpData, 33), 33, ViolationData},
		{"beyond what was consumed", Gateway, func(v, p *side) {
			p.write(60)
			p.transfer()
			v.receive()
		}, MakeImm(OpData, 5), 5, ViolationData},
		{"without credit", Gateway, func(v, p *side) {
			for range 8 {
				p.write(1)
			}
			for p.transfer() {
			}
			for v.receive() {
			}
		}, MakeImm(OpData, 1), 1, ViolationCredit},
		{"after shutdown", Gateway, func(v, p *side) {
			p.Shutdown()
			p.control()
			p.transfer()
			v.receive()
		}, MakeImm(OpData, 1), 1, ViolationShutdown},
		{"after disconnect", Gateway, func(v, p *side) {
			p.Disconnect()
			p.control()
			p.transfer()
			v.receive()
		}, MakeImm(OpData, 1), 1, ViolationShutdown},
		{"limit backwards", Gateway, nil, MakeImm(OpSGL, 7), 0, ViolationLimit},
		{"limit half a round back", Gateway, nil, MakeImm(OpSGL, 8+0x8000), 0, ViolationLimit},
		{"limit beyond the queue", Gateway, nil, MakeImm(OpSGL, 9), 0, ViolationLimit},
		{"limit beyond what was sent", Stock, func(v, _ *side) { v.write(1) }, MakeImm(OpSGL, 10), 0, ViolationLimit},
		{"half a grant", Gateway, nil, sgl, 8, ViolationLength},
		{"grant of nothing", Stock, grantEntry(SGE{Addr: 1}), sgl, sgeSize, ViolationGrant},
		{"grant over the address space", Stock, grantEntry(SGE{Addr: ^uint64(0), Length: 2}), sgl, sgeSize, ViolationGrant},
		{"grant of unsent bytes", Gateway, grantEntry(SGE{Addr: ringBase, Key: ringKey, Length: 8}), sgl, sgeSize, ViolationGrant},
		{"grant with another key", Gateway, usedUp(grantEntry(SGE{Addr: ringBase, Key: 7, Length: 8})), sgl, sgeSize, ViolationGrant},
		{"grant out of order", Gateway, usedUp(grantEntry(SGE{Addr: ringBase + 8, Key: ringKey, Length: 8})), sgl, sgeSize, ViolationGrant},
		{"grant outside", Gateway, usedUp(grantEntry(SGE{Addr: ringBase, Key: ringKey, Length: 65})), sgl, sgeSize, ViolationGrant},
		{"grant below", Gateway, usedUp(grantEntry(SGE{Addr: ringBase - 8, Key: ringKey, Length: 8})), sgl, sgeSize, ViolationGrant},
		{"probe of a stock stream", Stock, nil, MakeImm(OpProbe, 16), 16, ViolationProbe},
		{"probe into a running stream", Gateway, writes, MakeImm(OpProbe, 16), 16, ViolationProbe},
		{"echo into a running stream", Gateway, writes, MakeImm(OpProbe, 16|probeEcho), 16, ViolationProbe},
		{"probe of nothing", Gateway, nil, MakeImm(OpProbe, 0), 0, ViolationLength},
		{"probe with another length", Gateway, nil, MakeImm(OpProbe, 16), 17, ViolationLength},
		{"probe beyond half of the ring", Gateway, nil, MakeImm(OpProbe, 33), 33, ViolationProbe},
		{"echo of nothing", Gateway, nil, MakeImm(OpProbe, 16|probeEcho), 16, ViolationProbe},
	}
}

// writes: the peer has begun the stream.
func writes(v, p *side) {
	p.write(1)
	p.transfer()
	v.receive()
}

func TestHostilePeer(t *testing.T) {
	for _, tc := range hostilePeers() {
		t.Run(tc.name, func(t *testing.T) {
			cfg := func() Config { return memory(Config{Dialect: tc.dialect, Credits: 8, SendDepth: 16}, 64, 2) }
			victim, peer := newPair(t, cfg(), cfg(), false, false)
			if tc.dialect == Stock {
				victim.posted, peer.posted = nil, nil
			}
			if tc.prepare != nil {
				tc.prepare(victim, peer)
			}
			_, err := victim.Receive(tc.imm, tc.length)
			var violation *ProtocolError
			require.ErrorAs(t, err, &violation)
			require.ErrorIs(t, err, ErrProtocol)
			require.Equal(t, tc.want, violation.Violation)
			require.NotEmpty(t, err.Error())
			require.Equal(t, StateFailed, victim.State())
			_, err = victim.Receive(MakeImm(OpData, 1), 1)
			require.ErrorIs(t, err, ErrProtocol, "nothing more is accepted")
			require.Zero(t, victim.write(1))
			require.NoError(t, peer.Err(), "the other stream is untouched")
		})
	}
}

func TestTooManyGrants(t *testing.T) {
	victim, _ := newPair(t, memory(Config{}, 64, 2), memory(Config{}, 64, 2), false, false)
	grant := grantEntry(SGE{Addr: ringBase, Key: ringKey, Length: 8})
	grant(victim, nil)
	_, err := victim.Receive(MakeImm(OpSGL, 256), sgeSize)
	require.NoError(t, err)
	grant(victim, nil)
	_, err = victim.Receive(MakeImm(OpSGL, 256), sgeSize)
	require.ErrorIs(t, err, ErrProtocol)
}

// Grants of other rings than the first, between ends that both may exchange theirs.
func TestHostileRings(t *testing.T) {
	const other = ringBase + 1<<32
	elsewhere := SGE{Addr: other, Key: 7, Length: 64}
	for name, grants := range map[string][]SGE{
		"over the present one":     {{Addr: ringBase + 32, Key: ringKey, Length: 64}},
		"around the present one":   {{Addr: ringBase - 8, Key: ringKey, Length: 128}},
		"the present one again":    {{Addr: ringBase, Key: ringKey, Length: 64}},
		"of nothing":               {{Addr: other, Key: 7}},
		"larger than any":          {{Addr: other, Key: 7, Length: MaxRing + 1}},
		"over the address space":   {{Addr: ^uint64(0) - 8, Key: 7, Length: 64}},
		"after one that is new":    {elsewhere, {Addr: other + 1<<32, Key: 8, Length: 64}},
		"more of one that is full": {elsewhere, {Addr: other, Key: 7, Length: 8}},
		"beyond the new one":       {elsewhere, {Addr: other + 64, Key: 7, Length: 8}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := func() Config {
				return memory(Config{Dialect: Gateway, Rings: true, Credits: 8, SendDepth: 16}, 64, 4)
			}
			victim, _ := newPair(t, cfg(), cfg(), false, false)
			for i, g := range grants {
				grantEntry(g)(victim, nil)
				_, err := victim.Receive(MakeImm(OpSGL, 8), sgeSize)
				if i < len(grants)-1 {
					require.NoError(t, err)
					continue
				}
				var violation *ProtocolError
				require.ErrorAs(t, err, &violation)
				require.Equal(t, ViolationGrant, violation.Violation)
			}
		})
	}
}

// A peer that has not said that it exchanges rings must not begin with it.
func TestRingOfAPeerWithoutTheFlag(t *testing.T) {
	cfg := memory(Config{Dialect: Gateway, Rings: true, Credits: 8, SendDepth: 16}, 64, 2)
	plain := memory(Config{Dialect: Gateway, Credits: 8, SendDepth: 16}, 64, 2)
	victim, _ := newPair(t, cfg, plain, false, false)
	require.False(t, victim.CanSwitchRing())
	grantEntry(SGE{Addr: ringBase + 1<<32, Key: 7, Length: 64})(victim, nil)
	_, err := victim.Receive(MakeImm(OpSGL, 8), sgeSize)
	require.ErrorIs(t, err, ErrProtocol)
}

func TestTooManyProbes(t *testing.T) {
	victim, _ := gatewayPair(t, 64)
	for range maxProbes {
		_, err := victim.Receive(MakeImm(OpProbe, 16), 16)
		require.NoError(t, err)
		c, ok := victim.Echo()
		require.True(t, ok)
		victim.Completed(c.ID)
	}
	_, err := victim.Receive(MakeImm(OpProbe, 16), 16)
	require.ErrorIs(t, err, ErrProtocol)
}

func TestUnusableConnData(t *testing.T) {
	good := exampleConn()
	for name, change := range map[string]func(*ConnData){
		"no credits":    func(d *ConnData) { d.Credits = 0 },
		"no targets":    func(d *ConnData) { d.TargetSGL.Length = 0 },
		"no ring":       func(d *ConnData) { d.DataBuf.Length = 0 },
		"ring overflow": func(d *ConnData) { d.DataBuf.Addr = ^uint64(0) },
		"huge ring":     func(d *ConnData) { d.DataBuf.Length = 1<<32 - 1 },
	} {
		d := good
		change(&d)
		s, err := NewStream(memory(Config{Dialect: Gateway}, 64, 2))
		require.NoError(t, err)
		require.ErrorIs(t, s.Connect(d), ErrProtocol, name)
		require.Equal(t, StateFailed, s.State())
	}
}

// FuzzReceive feeds any immediates with any target list to a stream in use: it never panics, never counts beyond its
// ring, and a violation ends it for good. Input is a sequence of {immediate, length, grant}.
func FuzzReceive(f *testing.F) {
	step := func(imm Imm, length uint32, g SGE) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(imm))
		b = binary.BigEndian.AppendUint32(b, length)
		e := grantBytes(g, nativeBigEndian())
		return append(b, e[:]...)
	}
	f.Add(byte(0), step(MakeImm(OpData, 10), 10, SGE{}))
	f.Add(byte(1), append(step(MakeImm(OpData, 64), 64, SGE{}), step(MakeImm(OpCtrl, CtrlShutdown), 0, SGE{})...))
	f.Add(byte(0), step(MakeImm(OpSGL, 256), 16, SGE{Addr: ringBase + 32, Key: ringKey, Length: 32}))
	f.Add(byte(1), step(MakeImm(OpSGL, 9), 16, SGE{Addr: ringBase, Key: ringKey, Length: 32}))
	f.Add(byte(1), step(MakeImm(OpProbe, 16), 16, SGE{}))
	f.Add(byte(1), step(MakeImm(OpCtrl, CtrlDisconnect), 0, SGE{}))
	for _, tc := range hostilePeers() {
		f.Add(byte(tc.dialect), step(tc.imm, tc.length, SGE{Addr: ringBase, Key: ringKey, Length: 8}))
	}
	f.Fuzz(func(t *testing.T, dialect byte, in []byte) {
		s, err := NewStream(memory(Config{Dialect: Dialect(dialect & 1), Credits: 8, SendDepth: 16}, 64, 4))
		require.NoError(t, err)
		peer := exampleConn()
		peer.DataBuf.Length = 64
		require.NoError(t, s.Connect(peer))
		for ; len(in) >= 24; in = in[24:] {
			copy(s.set.targets[int(s.send.slot)*sgeSize:], in[8:24])
			_, err := s.Receive(Imm(binary.BigEndian.Uint32(in)), binary.BigEndian.Uint32(in[4:]))
			checkVictim(t, s, err)
		}
	})
}

func checkVictim(t *testing.T, s *Stream, err error) {
	if err != nil {
		require.ErrorIs(t, err, ErrProtocol)
		require.Equal(t, StateFailed, s.State())
	}
	require.LessOrEqual(t, len(s.ReadSpan()), 64)
	require.NoError(t, s.Consume(len(s.ReadSpan())/2))
	if n, _ := s.Window(); n > 0 {
		_, err := s.Send((n + 1) / 2)
		require.NoError(t, err)
	}
	_, _ = s.Echo()
	for c, ok := s.NextControl(); ok; c, ok = s.NextControl() {
		require.LessOrEqual(t, c.Length, sgeSize)
	}
	require.LessOrEqual(t, s.FreedOffset(), s.SentOffset())
	if s.Settled() && s.err == nil {
		require.True(t, s.peerGone || s.disconnected)
	}
}
