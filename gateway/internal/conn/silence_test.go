package conn

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

// TestUserTimeoutEndsSilentPeers: bytes of an application with a TCP_USER_TIMEOUT that
// no sign of the peer follows end the connection; a peer that is heard keeps it, and
// so does an application that sends nothing.
func TestUserTimeoutEndsSilentPeers(t *testing.T) {
	p := newPair(t)
	for _, kind := range allCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			c := p.dial(t, kind)
			defer c.closeApps()
			g, f := p.g[0], c.flow[0]
			f.Watched(ebpf.Event{Kind: ebpf.EventTimeout, Tuple: ebpf.Tuple(f.Tuple), ISN: 7, UserTimeout: time.Second})
			f.call(func() {})
			now := time.Now()
			turns := func(n int) {
				for range n {
					require.True(t, g.silences.turn(now))
					now = now.Add(life.SilenceTurn)
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
			require.Equal(t, life.Carrying, f.state())
			c.wire[0].setSilent(true)
			turns(20)
			require.Equal(t, life.Carrying, f.state(), "idle")
			send()
			turns(8)
			for range 4 {
				g.silences.turn(now)
				f.call(func() {}) // what it has posted
				now = now.Add(life.SilenceTurn)
			}
			require.Equal(t, life.Aborted, f.state())
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
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierSHM)
	defer c.closeApps()
	f, steer := c.flow[1], p.steer[1]
	probe := ebpf.Event{Kind: ebpf.EventProbe, Tuple: ebpf.Tuple(f.Tuple), ISN: 7, Seq: 41, Ack: 43}
	c.wire[1].setSilent(true)
	f.Watched(probe)
	f.call(func() {})
	require.Empty(t, steer.TakeInjected())
	c.wire[1].setSilent(false)
	f.Watched(probe)
	f.call(func() {})
	require.Equal(t, [][]byte{ebpf.ProbeSegment(probe.Tuple, 41, 43)}, steer.TakeInjected())
}

// TestSilencesWake: the loop looks when there is something to look at, and ends.
func TestSilencesWake(t *testing.T) {
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierSHM)
	defer c.closeApps()
	var s silences
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.loop(ctx) })
	time.Sleep(2 * life.SilenceTurn)
	s.watch(c.flow[0], time.Hour)
	looked := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.flows[c.flow[0]].clock != (life.SilenceClock{})
	}
	require.Eventually(t, looked, patience, time.Millisecond)
	s.watch(c.flow[0], 0)
	require.Empty(t, s.flows)
	cancel()
	wg.Wait()
}
