package rsocket

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigIsChecked(t *testing.T) {
	good := memory(Config{}, 1024, 2)
	for name, change := range map[string]func(*Config){
		"dialect":         func(c *Config) { c.Dialect = 7 },
		"no ring":         func(c *Config) { c.Ring = nil },
		"no targets":      func(c *Config) { c.Targets = nil },
		"one target":      func(c *Config) { c.Targets = c.Targets[:16] },
		"half a target":   func(c *Config) { c.Targets = make([]byte, 40) },
		"many targets":    func(c *Config) { c.Targets = make([]byte, 17*16) },
		"one credit":      func(c *Config) { c.Credits = 1 },
		"credits":         func(c *Config) { c.Credits = 1 << 16 },
		"shallow queue":   func(c *Config) { c.SendDepth = 7 },
		"deep queue":      func(c *Config) { c.SendDepth = 1 << 16 },
		"signal distance": func(c *Config) { c.SignalBytes = -1 },
	} {
		cfg := good
		change(&cfg)
		_, err := NewStream(cfg)
		require.ErrorIs(t, err, ErrConfig, name)
	}
}

func TestIdleStream(t *testing.T) {
	s, err := NewStream(memory(Config{Dialect: Gateway}, 1024, 2))
	require.NoError(t, err)
	require.Equal(t, StateIdle, s.State())
	_, why := s.Window()
	require.Equal(t, BlockedClosed, why)
	_, err = s.Send(1)
	require.ErrorIs(t, err, ErrState)
	_, err = s.Probe(16)
	require.ErrorIs(t, err, ErrState)
	_, err = s.Receive(MakeImm(OpData, 1), 1)
	require.ErrorIs(t, err, ErrState)
	_, due := s.NextControl()
	require.False(t, due)
	s.Shutdown()
	s.Disconnect()
	require.Equal(t, StateIdle, s.State())
}

func gatewayPair(t *testing.T, ring int) (*side, *side) {
	cfg := func() Config { return memory(Config{Dialect: Gateway, Credits: 8, SendDepth: 16}, ring, 16) }
	return newPair(t, cfg(), cfg(), false, false)
}

func TestConnectOnce(t *testing.T) {
	a, b := gatewayPair(t, 64)
	require.ErrorIs(t, a.Connect(b.ConnData()), ErrState)
}

func TestBlockedReasons(t *testing.T) {
	a, b := gatewayPair(t, 64)
	for range 8 {
		require.Equal(t, 1, a.write(1))
	}
	_, why := a.Window()
	require.Equal(t, BlockedCredit, why)
	settle(a, b)
	require.Equal(t, 64-8, a.write(64), "a message ends where the ring wraps")
	require.Equal(t, 8, a.write(64))
	_, why = a.Window()
	require.Equal(t, BlockedGrant, why)
	settle(a, b)
	_, err := a.Send(65)
	require.ErrorIs(t, err, ErrBlocked)
	_, err = a.Send(0)
	require.ErrorIs(t, err, ErrBlocked)
	a.Shutdown()
	_, why = a.Window()
	require.Equal(t, BlockedClosed, why)
}

func TestSendQueueLeavesRoomForControl(t *testing.T) {
	cfg := memory(Config{Dialect: Gateway, Credits: 100, SendDepth: 16}, 1000, 16)
	a, b := newPair(t, cfg, memory(cfg, 1000, 16), false, false)
	n := 0
	for a.write(1) == 1 {
		n++
	}
	require.Equal(t, 16-ControlSlots, n)
	_, why := a.Window()
	require.Equal(t, BlockedSQ, why)
	for a.transfer() {
	}
	require.True(t, a.complete())
	require.Positive(t, a.write(1))
	settle(a, b)
}

// All 16-bit counters wrap several times, with a byte per message and credits that do not divide 65536.
func TestSequenceWrap(t *testing.T) {
	for _, dialect := range []Dialect{Stock, Gateway} {
		cfg := Config{Dialect: dialect, Credits: 77, SendDepth: 40}
		a, b := newPair(t, memory(cfg, 1000, 4), memory(cfg, 1000, 4), false, false)
		for a.SentOffset() < 200_000 {
			if a.write(1) == 0 {
				settle(a, b)
				checkInvariants(t, a)
				a.must(a.write(1) == 1, "blocked for ever")
			}
		}
		settle(a, b)
		require.Equal(t, uint64(200_000), b.ConsumedOffset())
	}
}

// Offsets keep counting beyond 32 bits, and what is freed follows.
func TestOffsetsBeyond32Bits(t *testing.T) {
	const ring = 1 << 20
	cfg := Config{Dialect: Gateway}
	a, b := newPair(t, memory(cfg, ring, 16), memory(cfg, ring, 16), false, false)
	for a.SentOffset() < math.MaxUint32+10*ring {
		n, _ := a.Window()
		require.NotZero(t, n)
		w, err := a.Send(n)
		require.NoError(t, err)
		_, err = b.Receive(w.Imm, uint32(n))
		require.NoError(t, err)
		require.NoError(t, b.Consume(n))
		a.Completed(w.ID)
		for c, ok := b.NextControl(); ok; c, ok = b.NextControl() {
			copy(a.find(c.RemoteAddr, c.RKey, c.Length), c.Payload[:c.Length])
			_, err := a.Receive(c.Imm, uint32(c.Length))
			require.NoError(t, err)
			b.Completed(c.ID)
		}
		require.Equal(t, a.SentOffset(), a.FreedOffset())
	}
}

func TestCrossedShutdownsKeepData(t *testing.T) {
	a, b := gatewayPair(t, 64)
	for _, s := range []*side{a, b} {
		s.write(30)
		s.Shutdown()
		s.control()
	}
	for _, s := range []*side{a, b} {
		for s.transfer() {
		}
	}
	for _, s := range []*side{a, b} {
		for s.receive() {
		}
		require.Equal(t, StateDisconnected, s.State())
		require.False(t, s.Settled(), "own sends have not completed")
		require.Equal(t, 30, s.read(100), "received bytes stay readable")
		for s.complete() {
		}
		require.True(t, s.Settled())
		require.False(t, s.PeerGone())
	}
}

// Nothing follows the last word, although the peer has not heard it and sends.
func TestNothingAfterDisconnect(t *testing.T) {
	a, b := gatewayPair(t, 64)
	a.Disconnect()
	a.control()
	last := len(a.posted)
	for b.write(1) == 1 {
		b.transfer()
		a.receive()
		a.read(1)
		a.control()
	}
	require.Equal(t, uint64(8), a.ConsumedOffset(), "all that credits were there for")
	require.Len(t, a.posted, last)
}

// At rest a gateway tells all that it has consumed, once, and only when it has consumed everything. What is said on the
// way there is not said again.
func TestCreditsReturnedAtRest(t *testing.T) {
	a, b := gatewayPair(t, 64)
	rest := func(told uint64, messages int) {
		t.Helper()
		had := len(b.posted)
		b.ReturnCredits()
		b.control()
		require.Len(t, b.posted, had+messages)
		settled := b.creditsSettled()
		require.Equal(t, messages == 0, settled)
		for b.transfer() {
		}
		for a.receive() {
		}
		require.Equal(t, told, a.FreedOffset())
		for b.complete() {
		}
		require.True(t, b.creditsSettled())
	}
	rest(0, 0)
	require.Equal(t, 5, a.write(5))
	require.Equal(t, 2, a.write(2))
	for a.transfer() {
	}
	for b.receive() {
	}
	b.read(6)
	rest(0, 0)
	b.read(1)
	rest(7, 1)
	rest(7, 0)

	require.Equal(t, 1, a.write(1))
	settle(a, b)
	b.Keepalive() // which is on its way
	b.control()
	b.ReturnCredits()
	b.control()
	require.Len(t, b.posted, 1)
	require.False(t, b.creditsSettled())
	settle(a, b)
	require.EqualValues(t, 8, a.FreedOffset())
	require.True(t, b.creditsSettled())

	require.Equal(t, 1, a.write(1))
	settle(a, b)
	a.Shutdown()
	a.control()
	settle(a, b)
	b.ReturnCredits()
	require.True(t, b.creditsSettled(), "a peer that sends no more needs no credits")
}

// A SHUTDOWN that waits for a control slot still goes out when the peer's crosses it.
func TestShutdownWaitsForSlot(t *testing.T) {
	a, b := gatewayPair(t, 64)
	for range ControlSlots {
		a.Keepalive()
		a.control()
	}
	a.Shutdown()
	a.control()
	b.Shutdown()
	settle(b)
	b.control()
	settle(b)
	require.True(t, a.receive())
	require.Equal(t, StateDisconnected, a.State())
	settle(a, b)
	require.Equal(t, StateDisconnected, b.State())
	require.True(t, a.Settled())
}

func TestPendingShutdownIsNotSettled(t *testing.T) {
	a, b := gatewayPair(t, 64)
	b.Shutdown()
	b.control()
	b.transfer()
	a.Shutdown()
	_, err := a.Receive(a.arrived[0].Imm, 0) // not asked for control messages yet
	require.NoError(t, err)
	a.arrived = nil
	require.Equal(t, StateDisconnected, a.State())
	require.False(t, a.Settled(), "the peer needs our message")
	a.control()
	settle(a, b)
	require.True(t, a.Settled())
	require.Equal(t, StateDisconnected, b.State())
}

// With two credits and a peer that does not poll, more messages pile up than it gave credits: the extra receives are
// for them.
func TestExtraReceivesAreNeededAndEnough(t *testing.T) {
	cfg := Config{Dialect: Gateway, Credits: 2, SendDepth: 16}
	a, b := newPair(t, memory(cfg, 64, 16), memory(cfg, 64, 16), false, false)
	b.write(64)
	b.transfer()
	a.receive()
	for a.write(1) == 1 {
	}
	for a.transfer() || a.complete() || a.read(8) > 0 {
	}
	a.Disconnect()
	a.control()
	a.transfer()
	require.Len(t, b.arrived, 2+8+1)
	require.LessOrEqual(t, len(b.arrived), cfg.RecvDepth())
	settle(a, b)
}

func TestFailKeepsFirstReason(t *testing.T) {
	a, _ := gatewayPair(t, 64)
	first := errors.New("first")
	a.Fail(first)
	a.Fail(errors.New("second"))
	require.Equal(t, first, a.Err())
	require.Equal(t, StateFailed, a.State())
	_, err := a.Send(1)
	require.ErrorIs(t, err, first)
	_, err = a.Receive(MakeImm(OpData, 1), 1)
	require.ErrorIs(t, err, first)
	_, due := a.NextControl()
	require.False(t, due)
	require.True(t, a.Settled())
}

func TestProbeLeavesStreamClean(t *testing.T) {
	a, b := gatewayPair(t, 64)
	for range 2 {
		c, err := a.Probe(30)
		require.NoError(t, err)
		require.Equal(t, uint64(ringBase), c.RemoteAddr)
		a.post(c.Write, make([]byte, 30))
		a.transfer()
		b.receive()
		require.True(t, b.events.Has(EventProbe))
		e, ok := b.Echo()
		require.True(t, ok)
		_, ok = b.Echo()
		require.False(t, ok)
		b.post(e.Write, b.ProbeBytes(30))
		settle(a, b)
		require.True(t, a.events.Has(EventProved))
	}
	require.Zero(t, a.SentOffset()+b.SentOffset()+a.ReceivedOffset()+b.ReceivedOffset())
	for range 100 {
		require.Positive(t, a.write(60))
		require.Positive(t, b.write(60))
		settle(a, b)
		checkInvariants(t, a)
	}
	_, err := a.Probe(30)
	require.ErrorIs(t, err, ErrState, "too late")
}

// TestRepeatedProbe: repetitions that are still on the way when the first echo
// is back, and when either side has begun to send, disturb neither side.
func TestRepeatedProbe(t *testing.T) {
	a, b := gatewayPair(t, 64)
	probe := func() {
		c, err := a.Probe(30)
		require.NoError(t, err)
		a.post(c.Write, make([]byte, 30))
		a.transfer()
	}
	echo := func() {
		e, ok := b.Echo()
		require.True(t, ok)
		b.post(e.Write, b.ProbeBytes(30))
	}
	for range 2 {
		probe()
		b.receive()
		echo()
	}
	probe()
	for b.transfer() {
	}
	a.receive()
	require.True(t, a.events.Has(EventProved))
	a.events = 0
	require.Positive(t, b.write(20), "the last word came another way")
	require.Positive(t, a.write(20))
	settle(a, b)
	require.False(t, a.events.Has(EventProved), "once is enough")
	_, ok := b.Echo()
	require.False(t, ok, "nothing may overwrite the stream")
	require.EqualValues(t, 20, a.ReceivedOffset())
	require.EqualValues(t, 20, b.ReceivedOffset())
	require.NoError(t, a.Err())
	require.NoError(t, b.Err())
}

func TestProbeLimits(t *testing.T) {
	a, _ := gatewayPair(t, 64)
	for _, n := range []int{-1, 0, 33, MaxProbe + 1} {
		_, err := a.Probe(n)
		require.ErrorIs(t, err, ErrState, n)
	}
	for range ControlSlots {
		_, err := a.Probe(32)
		require.NoError(t, err)
	}
	_, err := a.Probe(32)
	require.ErrorIs(t, err, ErrBlocked)
	require.Nil(t, a.ProbeBytes(65))
	stock, _ := newPair(t, memory(Config{}, 64, 2), memory(Config{}, 64, 2), false, false)
	_, err = stock.Probe(16)
	require.ErrorIs(t, err, ErrState, "a stock peer is never probed")
}

func TestNames(t *testing.T) {
	require.Equal(t, "sndbuf", BlockedSndbuf.String())
	require.Equal(t, "unknown", Blocked(99).String())
	require.Equal(t, "remote_shut", StateRemoteShut.String())
	require.Equal(t, "unknown", State(99).String())
	require.Equal(t, "violation 99", Violation(99).String())
}
