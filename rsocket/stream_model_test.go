package rsocket

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawConfig(t *rapid.T, dialect Dialect) Config {
	ring := rapid.OneOf(rapid.IntRange(2, 40), rapid.IntRange(41, 600)).Draw(t, "ring")
	targets := rapid.IntRange(StockTargets, MaxTargets).Draw(t, "targets")
	return memory(Config{
		Dialect:     dialect,
		Rings:       dialect == Gateway && rapid.Bool().Draw(t, "rings"),
		Credits:     rapid.OneOf(rapid.IntRange(2, 8), rapid.IntRange(9, 40)).Draw(t, "credits"),
		SendDepth:   rapid.IntRange(minSendDepth, 24).Draw(t, "depth"),
		SignalBytes: rapid.SampledFrom([]int{0, 1, 50}).Draw(t, "signal"),
	}, ring, targets)
}

// checkInvariants holds at any moment between two correct streams.
func checkInvariants(t require.TestingT, s *side) {
	p := s.peer
	require.NoError(t, s.Err(), s.name)
	require.LessOrEqual(t, s.FreedOffset(), s.SentOffset())
	require.LessOrEqual(t, p.ReceivedOffset(), s.SentOffset())
	require.LessOrEqual(t, p.ConsumedOffset(), p.ReceivedOffset())
	if s.cfg.Dialect == Gateway {
		require.LessOrEqual(t, s.FreedOffset(), p.ConsumedOffset(), "%s freed bytes its peer has not consumed", s.name)
		require.LessOrEqual(t, s.maxPending, s.cfg.RecvDepth(), "%s needs a receive that is not posted", s.name)
	}
	require.LessOrEqual(t, s.SentOffset()-p.ConsumedOffset(), uint64(p.live))
	require.Equal(t, int(s.SentOffset()-p.ConsumedOffset()), s.sent.Len())
	require.LessOrEqual(t, s.ctrl.posted-s.ctrl.done, uint32(ControlSlots))
	require.LessOrEqual(t, int(s.send.works-s.send.doneWorks), s.cfg.SendDepth-ControlSlots)
}

// Two streams over an ordered wire with any timing, against a byte buffer. At the end everything sent has arrived and
// either side can send again.
func TestStreamModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dialect := rapid.SampledFrom([]Dialect{Stock, Gateway}).Draw(t, "dialect")
		a, b := newPair(t, drawConfig(t, dialect), drawConfig(t, dialect),
			rapid.Bool().Draw(t, "bigA"), rapid.Bool().Draw(t, "bigB"))
		pick := func(t *rapid.T) *side { return rapid.SampledFrom([]*side{a, b}).Draw(t, "side") }
		t.Repeat(map[string]func(*rapid.T){
			"write":    func(t *rapid.T) { pick(t).write(rapid.IntRange(1, 200).Draw(t, "n")) },
			"write1":   func(t *rapid.T) { pick(t).write(1) },
			"transfer": func(t *rapid.T) { pick(t).transfer() },
			"receive":  func(t *rapid.T) { pick(t).receive() },
			"complete": func(t *rapid.T) { pick(t).complete() },
			"read":     func(t *rapid.T) { pick(t).read(rapid.IntRange(1, 200).Draw(t, "n")) },
			"switch":   func(t *rapid.T) { pick(t).switchRing(rapid.IntRange(2, 900).Draw(t, "ring")) },
			"keepalive": func(t *rapid.T) {
				s := pick(t)
				s.Keepalive()
				s.control()
			},
			"rest": func(t *rapid.T) { pick(t).rest() },
			"":     func(t *rapid.T) { checkInvariants(t, a); checkInvariants(t, b) },
		})
		settle(a, b)
		for _, s := range []*side{a, b} {
			checkInvariants(t, s)
			require.Equal(t, s.SentOffset(), s.peer.ReceivedOffset())
			require.Zero(t, s.sent.Len())
			_, why := s.Window()
			require.Equal(t, NotBlocked, why, "%s is blocked for ever", s.name)
			s.rest()
		}
		settle(a, b)
		for _, s := range []*side{a, b} {
			require.True(t, s.creditsSettled())
			if dialect == Gateway {
				require.Equal(t, s.SentOffset(), s.FreedOffset(), "%s does not know what its peer has read", s.name)
			}
		}
	})
}

// The same with ends: half-close from either side in any order, crossed or not, and disconnects.
func TestStreamShutdownModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dialect := rapid.SampledFrom([]Dialect{Stock, Gateway}).Draw(t, "dialect")
		a, b := newPair(t, drawConfig(t, dialect), drawConfig(t, dialect), false, false)
		pick := func(t *rapid.T) *side { return rapid.SampledFrom([]*side{a, b}).Draw(t, "side") }
		cut := false
		t.Repeat(map[string]func(*rapid.T){
			"write":    func(t *rapid.T) { pick(t).write(rapid.IntRange(1, 200).Draw(t, "n")) },
			"transfer": func(t *rapid.T) { pick(t).transfer() },
			"receive":  func(t *rapid.T) { pick(t).receive() },
			"complete": func(t *rapid.T) { pick(t).complete() },
			"read":     func(t *rapid.T) { pick(t).read(rapid.IntRange(1, 200).Draw(t, "n")) },
			"switch":   func(t *rapid.T) { pick(t).switchRing(rapid.IntRange(2, 900).Draw(t, "ring")) },
			"shutdown": func(t *rapid.T) {
				s := pick(t)
				s.Shutdown()
				s.control()
			},
			"disconnect": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rare") > 0 {
					t.Skip("seldom")
				}
				s := pick(t)
				s.Disconnect()
				s.control()
				cut = true
			},
			"": func(t *rapid.T) { checkInvariants(t, a); checkInvariants(t, b) },
		})
		a.Shutdown()
		b.Shutdown()
		a.control()
		b.control()
		settle(a, b)
		for _, s := range []*side{a, b} {
			require.Equal(t, StateDisconnected, s.State(), "%s: %+v", s.name, s.ctrl)
			require.True(t, s.events.Has(EventDisconnected))
			require.True(t, s.Settled(), s.name)
			require.Zero(t, s.write(1))
			if !cut {
				require.Equal(t, s.SentOffset(), s.peer.ConsumedOffset(), "%s lost bytes", s.name)
			}
		}
	})
}
