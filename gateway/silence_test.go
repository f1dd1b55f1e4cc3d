package gateway

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

// TestSilenceClockModel: over any sequence of looks the clock is over exactly when
// bytes have been owed for the timeout, and has asked before.
func TestSilenceClockModel(t *testing.T) {
	type glance struct {
		at               time.Time
		sent, got, heard uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.IntRange(1, 60_000).Draw(t, "timeout")) * time.Millisecond
		var k silenceClock
		var past []glance
		now := glance{at: time.Unix(0, 0)}
		asked := time.Duration(0) // counted time since the last question, or since nothing was owed
		for range rapid.IntRange(1, 300).Draw(t, "looks") {
			step := rapid.SampledFrom([]time.Duration{silenceTurn / 2, silenceTurn, silenceTurn, silenceTurn, time.Hour}).Draw(t, "pause")
			now.at = now.at.Add(step)
			for _, n := range []*uint64{&now.sent, &now.got, &now.heard} {
				if rapid.IntRange(0, 30).Draw(t, "moves") == 0 {
					*n++
				}
			}
			past = append(past, now)

			want, owed := time.Duration(0), false
			for i := 1; i < len(past); i++ {
				fresh := past[i].sent != past[i-1].sent
				news := past[i].got != past[i-1].got || past[i].heard != past[i-1].heard
				switch {
				case news || !owed:
					owed, want = fresh, 0
				default:
					want += min(past[i].at.Sub(past[i-1].at), 2*silenceTurn)
				}
			}
			ask, over := k.look(now.sent, now.got, now.heard, now.at, timeout)
			if over != (owed && want >= timeout+silenceGrace) {
				t.Fatalf("over: %v after %v of %v, owed %v", over, want, timeout, owed)
			}
			if asked += min(step, 2*silenceTurn); ask || !owed || want == 0 {
				asked = 0
			}
			if ask && !owed || asked > min(timeout/3, silenceAsk)+2*silenceTurn {
				t.Fatalf("owed %v for %v, not asked for %v", owed, want, asked)
			}
		}
	})
}

// TestUserTimeoutEndsSilentPeers: bytes of an application with a TCP_USER_TIMEOUT that
// no sign of the peer follows end the connection; a peer that is heard keeps it, and
// so does an application that sends nothing.
func TestUserTimeoutEndsSilentPeers(t *testing.T) {
	p := newGatewayPair(t)
	for _, kind := range allCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			c := p.dial(t, kind)
			defer c.closeApps()
			g, f := c.flow[0].g, c.flow[0]
			g.onEvent(ebpf.Event{Kind: ebpf.EventTimeout, Tuple: ebpf.Tuple(f.tuple), ISN: 7, UserTimeout: time.Second})
			f.call(func() {})
			now := time.Now()
			turns := func(n int) {
				for range n {
					require.True(t, g.silences.turn(now))
					now = now.Add(silenceTurn)
				}
			}
			send := func() {
				sent := f.tx.Load()
				_, err := c.app[0].Write([]byte{1})
				require.NoError(t, err)
				require.Eventually(t, func() bool { return f.tx.Load() > sent }, patience, time.Millisecond)
			}
			turns(20) // idle
			require.Zero(t, c.wire[0].asked)
			send()
			turns(20)
			if kind != negotiate.CarrierRelay { // there the bytes themselves ask
				require.NotZero(t, c.wire[0].asked)
			}
			require.Equal(t, life.Carrying, f.getState())
			c.wire[0].setSilent(true)
			turns(20)
			require.Equal(t, life.Carrying, f.getState(), "idle")
			send()
			turns(8)
			for range 4 {
				g.silences.turn(now)
				f.call(func() {}) // what it has posted
				now = now.Add(silenceTurn)
			}
			require.Equal(t, life.Aborted, f.getState())
			require.Empty(t, g.silences.flows)
			require.NoError(t, c.app[0].SetReadDeadline(time.Now().Add(patience)))
			_, err := c.app[0].Read(make([]byte, 1))
			require.ErrorIs(t, err, unix.ECONNRESET)
			require.Equal(t, negotiate.ReasonPeerDead, f.view().reason)
		})
	}
}

// TestProbesAreAnsweredByThePeer: a probe of the application's kernel is written to
// the gateway's socket when the peer is heard, and not before.
func TestProbesAreAnsweredByThePeer(t *testing.T) {
	p := newGatewayPair(t)
	c := p.dial(t, negotiate.CarrierSHM)
	defer c.closeApps()
	f, steer := c.flow[1], p.steer[1]
	probe := ebpf.Event{Kind: ebpf.EventProbe, Tuple: ebpf.Tuple(f.tuple), ISN: 7, Seq: 41, Ack: 43}
	c.wire[1].setSilent(true)
	f.g.onEvent(probe)
	f.call(func() {})
	require.Empty(t, steer.takeInjected())
	c.wire[1].setSilent(false)
	f.g.onEvent(probe)
	f.call(func() {})
	require.Equal(t, [][]byte{ebpf.ProbeSegment(probe.Tuple, 41, 43)}, steer.takeInjected())
	probe.ISN++ // of another connection
	f.g.onEvent(probe)
	f.call(func() {})
	require.Empty(t, steer.takeInjected())
}

// TestSilencesWake: the loop looks when there is something to look at, and ends.
func TestSilencesWake(t *testing.T) {
	p := newGatewayPair(t)
	c := p.dial(t, negotiate.CarrierSHM)
	defer c.closeApps()
	var s silences
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.loop(ctx) })
	time.Sleep(2 * silenceTurn)
	s.watch(c.flow[0], time.Hour)
	looked := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.flows[c.flow[0]].clock.begun
	}
	require.Eventually(t, looked, patience, time.Millisecond)
	s.watch(c.flow[0], 0)
	require.Empty(t, s.flows)
	cancel()
	wg.Wait()
}
