package conn

import (
	"bytes"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
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
			w := newWatch(c, ebpf.SocketOptions{UserTimeout: time.Second})
			require.True(t, w.turns(20), "idle")
			require.Zero(t, c.wire[0].asked)
			w.send(t, 1)
			require.True(t, w.turns(20))
			if kind != negotiate.CarrierRelay { // there the bytes themselves ask
				require.NotZero(t, c.wire[0].asked)
			}
			require.Equal(t, life.Carrying, w.f.state())
			c.wire[0].setSilent(true)
			require.True(t, w.turns(20))
			require.Equal(t, life.Carrying, w.f.state(), "idle")
			w.send(t, 1)
			require.False(t, w.turns(12))
			require.Equal(t, life.Aborted, w.f.state())
			require.NoError(t, c.app[0].SetReadDeadline(time.Now().Add(patience)))
			_, err := c.app[0].Read(make([]byte, 1))
			require.ErrorIs(t, err, unix.ECONNRESET)
			require.Equal(t, negotiate.ReasonPeerDead, w.f.view().reason)
		})
	}
}

// watch has the client's flow of a connection looked at on its own time.
type watch struct {
	c   *pairConn
	f   *Flow
	now time.Time
}

func newWatch(c *pairConn, o ebpf.SocketOptions) *watch {
	w := &watch{c: c, f: c.flow[0], now: time.Now()}
	w.set(o)
	return w
}

func (w *watch) set(o ebpf.SocketOptions) {
	w.f.Watched(ebpf.Event{Kind: ebpf.EventOptions, Tuple: ebpf.Tuple(w.f.Tuple), ISN: 7, Options: o})
	w.f.call(func() {})
}

// turns looks n times, and reports whether the flow has not ended.
func (w *watch) turns(n int) (lives bool) {
	for range n {
		w.now = w.now.Add(life.SilenceTurn)
		w.f.call(func() {
			w.f.Shard.SetTimer(&w.f.silence.turn, time.Time{})
			w.f.lookForSilence(w.now)
			w.f.Shard.SetTimer(&w.f.silence.turn, time.Time{})
		})
	}
	w.f.call(func() { lives = !w.f.core.Ended() })
	return lives
}

// send has n bytes leave the application and its socket here.
func (w *watch) send(t *testing.T, n int) {
	t.Helper()
	sent := w.f.tx.Load()
	_, err := w.c.app[0].Write(make([]byte, n))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.f.tx.Load() == sent+uint64(n) }, patience, time.Millisecond)
}

// answers reports whether a probe of the application's kernel is answered at once.
func (w *watch) answers(p *pair) bool {
	p.steer[0].TakeInjected()
	probe := ebpf.Event{Kind: ebpf.EventProbe, Tuple: ebpf.Tuple(w.f.Tuple), ISN: 7, Seq: 41, Ack: 43}
	w.f.Watched(probe)
	w.f.call(func() {})
	return slices.EqualFunc(p.steer[0].TakeInjected(), [][]byte{ebpf.ProbeSegment(probe.Tuple, 41, 43)}, bytes.Equal)
}

// TestBytesOnTheirWayAnswerProbes: while bytes of an application wait for a sign of the
// peer its kernel would not probe, and what it probes is answered; until it would give them
// up. Those that the peer was heard after do not count, nor do any beside a timeout of its own.
func TestBytesOnTheirWayAnswerProbes(t *testing.T) {
	p := newPair(t)
	for _, kind := range allCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			c := p.dial(t, kind)
			defer c.closeApps()
			w := newWatch(c, ebpf.SocketOptions{Kept: true})
			silent := c.wire[0].setSilent
			require.True(t, w.answers(p), "the peer is there")
			silent(true)
			require.False(t, w.answers(p), "idle")
			require.True(t, w.turns(8))
			require.False(t, w.answers(p), "idle")

			w.send(t, 1000)
			require.True(t, w.answers(p), "on their way")
			require.True(t, w.turns(100))
			require.True(t, w.answers(p), "as long as the kernel repeats them")
			w.send(t, 1000)
			require.True(t, w.answers(p), "more of them")
			silent(false)
			require.True(t, w.answers(p))
			require.True(t, w.turns(8))
			silent(true)
			require.False(t, w.answers(p), "the peer was heard after them")

			silent(false)
			w.send(t, 1)
			require.True(t, w.turns(4)) // it is asked, soon
			silent(true)
			require.False(t, w.answers(p), "the peer was heard after them, too")

			w.send(t, 1)
			require.True(t, w.turns(4*930))
			require.False(t, w.answers(p), "given up")
			silent(false)
			require.True(t, w.answers(p))
			require.True(t, w.turns(4))
			silent(true)

			w.set(ebpf.SocketOptions{Kept: true, Own: true, UserTimeout: time.Minute})
			w.send(t, 1)
			require.False(t, w.answers(p), "its kernel ends it by the probes")
			w.set(ebpf.SocketOptions{Kept: true, UserTimeout: time.Minute, Sent: true})
			require.True(t, w.answers(p), "sent before it was known")
			require.False(t, w.turns(4*62), "given up")
		})
	}
}

// TestEndOnItsWayAnswersProbes: the end of an application's bytes waits for its
// acknowledgement as they do.
func TestEndOnItsWayAnswersProbes(t *testing.T) {
	p := newPair(t)
	for _, kind := range allCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			c := p.dial(t, kind)
			defer c.closeApps()
			w := newWatch(c, ebpf.SocketOptions{Kept: true})
			require.True(t, w.turns(2))
			c.wire[0].setSilent(true)
			require.False(t, w.answers(p))
			require.NoError(t, c.app[0].CloseWrite())
			require.Eventually(t, func() (ended bool) {
				w.f.call(func() { ended = w.f.core.Tx != life.TxOpen })
				return ended
			}, patience, time.Millisecond)
			require.True(t, w.answers(p))
		})
	}
}

// TestBytesThatNothingTakesAnswerProbes: bytes that the peer has no room for would be in the
// application's kernel, which would not probe beside them.
func TestBytesThatNothingTakesAnswerProbes(t *testing.T) {
	t.Parallel() // it waits
	p := newPair(t)
	for _, kind := range allCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			c := p.dial(t, kind)
			defer c.closeApps()
			w := newWatch(c, ebpf.SocketOptions{Kept: true})
			require.Eventually(t, func() (stands bool) { // nothing moves any more
				sent, wrote := w.f.tx.Load(), 0
				_ = c.app[0].SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
				for err := error(nil); err == nil; {
					var n int
					n, err = c.app[0].Write(make([]byte, 1<<16))
					wrote += n
				}
				w.f.call(func() { stands = wrote == 0 && w.f.tx.Load() == sent && w.f.holds() })
				return stands
			}, patience, time.Millisecond)
			require.True(t, w.turns(8)) // what was sent is acknowledged
			c.wire[0].setSilent(true)
			require.True(t, w.answers(p))
			require.True(t, w.turns(40))
			require.True(t, w.answers(p))
			require.True(t, w.turns(4*930))
			require.False(t, w.answers(p), "given up")
		})
	}
}

// TestLostBytesAnswerProbes: bytes that were lost on the wire leg are on their way although the
// peer is heard: its acknowledgement is what counts, and what was lost waits for its turn.
func TestLostBytesAnswerProbes(t *testing.T) {
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierRelay)
	defer c.closeApps()
	w := newWatch(c, ebpf.SocketOptions{Kept: true})
	wire := c.wire[0]
	hears := func() {
		wire.link.mu.Lock()
		wire.heard++
		wire.link.mu.Unlock()
		require.True(t, w.turns(4))
	}
	wire.setSilent(true)
	hears()
	require.False(t, w.answers(p), "nothing is on its way")
	w.send(t, 1)
	hears()
	require.True(t, w.answers(p))
	hears()
	require.True(t, w.answers(p), "again")
	wire.setSilent(false)
	require.True(t, w.turns(4))
	wire.setSilent(true)
	require.False(t, w.answers(p), "acknowledged")
}

// TestWatchedFlowsRest: a flow is looked at while bytes are on their way, and no longer.
func TestWatchedFlowsRest(t *testing.T) {
	t.Parallel() // it waits
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierSHM)
	defer c.closeApps()
	const timeout = 10 * time.Second // long enough for a peer that is silent as long as the test looks
	for _, o := range []ebpf.SocketOptions{{Kept: true}, {UserTimeout: timeout}, {Kept: true, UserTimeout: timeout}, {}} {
		w := newWatch(c, o)
		pending := func() (is bool) {
			w.f.call(func() { is = w.f.silence.turn.Pending() })
			return is
		}
		require.Eventually(t, func() bool { return !pending() }, patience, 10*time.Millisecond)
		c.wire[0].setSilent(true) // or the bytes may have been on their way before the test looks
		w.send(t, 1)
		require.Equal(t, o != ebpf.SocketOptions{}, pending())
		c.wire[0].setSilent(false)
		require.Eventually(t, func() bool { return !pending() }, patience, 10*time.Millisecond)
	}
}

// TestPeerKeepaliveEndsFlowsOfTheVanished: a peer whose host is gone for good leaves no
// flow behind, though none of them says anything.
func TestPeerKeepaliveEndsFlowsOfTheVanished(t *testing.T) {
	p := newPair(t)
	conns := make([]*pairConn, 30)
	for i := range conns {
		conns[i] = p.dial(t, negotiate.CarrierSoft)
	}
	var leader *fakeWire
	require.Eventually(t, func() bool {
		for _, c := range conns {
			if kept, _ := c.wire[0].asks(); kept {
				leader = c.wire[0]
			}
		}
		return leader != nil
	}, patience, 10*time.Millisecond, "nobody asks")
	_, count := leader.asks()
	require.Equal(t, carrier.LegPatience, time.Duration(count)*carrier.KeepaliveTurn)

	leader.fallSilent()
	asked := func() (n int) {
		for _, c := range conns {
			if written, _ := c.wire[0].Vitals(); written > 0 {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return asked() == len(conns)-1 }, patience, 10*time.Millisecond, "all others are asked")
	for _, c := range conns {
		c.wire[0].fallSilent()
	}
	for _, c := range conns {
		c.over(t)
		c.closeApps()
	}
	p.empty(t)
}

// TestSoftGivesUpASilentPeer: its flow goes on over the relay, and the carrier has
// to be proved again.
func TestSoftGivesUpASilentPeer(t *testing.T) {
	t.Parallel() // it waits
	p := newPair(t)
	c := p.dial(t, negotiate.CarrierSoft)
	mine, other := c.flow[0].chosen(), c.flow[1].chosen()
	mine.Proved()
	other.Shard.Call(func() { _ = other.QP.Close() })
	start := time.Now()
	_, err := c.app[0].Write([]byte("anybody there?"))
	require.NoError(t, err)
	_ = c.app[1].SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, 14)
	_, err = io.ReadFull(c.app[1], got)
	require.NoError(t, err)
	require.Equal(t, "anybody there?", string(got))
	require.WithinRange(t, time.Now(), start.Add(2*time.Second), start.Add(patience))
	require.Equal(t, "carrier_unreachable", c.flow[0].Info(time.Now()).Demoted)
	require.Equal(t, report.DemotedByPeer, c.flow[1].Info(time.Now()).Demoted)
	require.False(t, mine.Warm())
	c.closeApps()
	c.over(t)
	p.empty(t)
}
