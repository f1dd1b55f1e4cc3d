package gateway

import (
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/negotiate"
)

// TestLegEndsAsPlanned: reset until it is clean, and once.
func TestLegEndsAsPlanned(t *testing.T) {
	for _, clean := range []bool{false, true} {
		app, fd := legPair(t)
		leg := newAppLeg(fd, Tuple{})
		fd, err := leg.take()
		require.NoError(t, err)
		require.GreaterOrEqual(t, fd, legFloor)
		_, err = unix.Write(fd, []byte("x"))
		require.NoError(t, err)
		if clean {
			leg.clean()
			leg.reset()
		} else {
			leg.reset()
			leg.clean()
		}
		b, err := io.ReadAll(app)
		if clean {
			require.NoError(t, err)
			require.Equal(t, "x", string(b))
		} else {
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
		_, err = leg.take()
		require.ErrorIs(t, err, errLegClosed)
		_ = app.Close()
	}
}

// TestResetWhoseErrorIsSpent: the end that reads find behind a write that has taken
// the error is none.
func TestResetWhoseErrorIsSpent(t *testing.T) {
	fresh := legEdges{readable: true, writable: true}
	b := make([]byte, 10)
	app, fd := legPair(t)
	leg, edges := newAppLeg(fd, Tuple{}), fresh
	require.NoError(t, app.SetLinger(0))
	require.NoError(t, app.Close())
	require.Eventually(t, func() bool { return edges.write(leg.fd, []byte("x")) == 0 && edges.failed }, patience, time.Millisecond)
	require.True(t, edges.readable, "what came before the reset is still read")
	_, got := edges.read(leg.fd, b)
	require.Equal(t, legReset, got)
	leg.reset()

	app, fd = legPair(t)
	leg, edges = newAppLeg(fd, Tuple{}), fresh
	_, err := app.Write([]byte("last"))
	require.NoError(t, err)
	require.NoError(t, app.CloseWrite())
	require.Eventually(t, func() bool {
		n, got := edges.read(leg.fd, b)
		return got == legBytes && string(b[:n]) == "last"
	}, patience, time.Millisecond)
	edges.take(unix.EPOLLIN | unix.EPOLLRDHUP)
	_, got = edges.read(leg.fd, b)
	require.Equal(t, legEnd, got, "half closed")
	require.False(t, legDelivered(leg.fd))
	require.NoError(t, unix.Shutdown(leg.fd, unix.SHUT_WR))
	_, _ = io.ReadAll(app)
	require.NoError(t, app.Close())
	require.Eventually(t, func() bool { return legDelivered(leg.fd) }, patience, time.Millisecond)
	edges.take(unix.EPOLLIN | unix.EPOLLHUP)
	_, got = edges.read(leg.fd, b)
	require.Equal(t, legEnd, got, "closed in order")
	require.False(t, edges.failed)
	leg.clean()
}

func TestPeerBookIsBounded(t *testing.T) {
	b := newPeerBook()
	policy := negotiate.CachePolicy{}
	now := time.Unix(1000, 0)
	addr := func(i int) netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	for i := range 2*peerBookLimit + 10 {
		b.strike(addr(i), 80, negotiate.ReasonAppRefused, policy, now)
		b.proven(addr(i), CarrierShm)
		require.LessOrEqual(t, len(b.strikes), peerBookLimit)
		require.LessOrEqual(t, len(b.capable), peerBookLimit)
	}
	for i := 0; len(b.strikes) < peerBookLimit; i++ {
		b.strike(addr(i), 79, negotiate.ReasonAppRefused, policy, now)
	}
	late := now.Add(time.Hour) // all are without effect: they make room first
	b.strike(addr(1), 81, negotiate.ReasonAppRefused, policy, late)
	require.Equal(t, 1, len(b.strikes))
}

func TestPeerBook(t *testing.T) {
	b := newPeerBook()
	a := netip.MustParseAddr("10.0.0.1")
	policy := negotiate.CachePolicy{NegativeTTL: 20 * time.Second}
	now := time.Unix(1000, 0)
	first := b.strike(a, 80, negotiate.ReasonAppRefused, policy, now)
	again := b.strike(a, 80, negotiate.ReasonAppRefused, policy, now.Add(first.TTL))
	require.Equal(t, 2*first.TTL, again.TTL)
	require.Equal(t, first.TTL, b.strike(a, 81, negotiate.ReasonAppRefused, policy, now).TTL, "ports are apart")
	b.flush()
	require.Equal(t, first.TTL, b.strike(a, 80, negotiate.ReasonAppRefused, policy, now).TTL)

	b.proven(a, CarrierRelay)
	b.proven(a, CarrierShm)
	b.proven(a, CarrierShm)
	require.ElementsMatch(t, []Carrier{CarrierShm, CarrierRelay}, b.carriers()[a])
}

// What a later connection shows to be wrong is forgotten, and its row with it.
func TestPeerBookContradicted(t *testing.T) {
	b := newPeerBook()
	a, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	policy := negotiate.CachePolicy{}
	now := time.Unix(1000, 0)
	strike := func() {
		b.strike(a, 0, negotiate.ReasonAcceptLost, policy, now)
		b.strike(a, 80, negotiate.ReasonHandshakeTimeout, policy, now)
		b.strike(a, 81, negotiate.ReasonAppRefused, policy, now)
		b.strike(other, 80, negotiate.ReasonHandshakeTimeout, policy, now)
	}
	strike()
	require.Empty(t, b.contradicted(a, 80, now.Add(-time.Second), policy), "it began before")
	later := now.Add(time.Second)
	require.ElementsMatch(t, []uint16{0, 80}, b.contradicted(a, 0, later, policy), "of the gateway and the way to it")
	require.Empty(t, b.contradicted(a, 0, later, policy))
	require.Equal(t, []uint16{81}, b.contradicted(a, 81, later, policy))
	require.Len(t, b.strikes, 1)
	require.Len(t, b.struck, 1)
	strike()
	require.Equal(t, []uint16{0}, b.contradicted(a, 0, now.Add(10*time.Second), policy), "what is over by then needs not be told")
	b.flush()
	require.Empty(t, b.struck)
}

// lateLoop is a loop that is late by so much.
type lateLoop struct{ by time.Duration }

func (l *lateLoop) Late(time.Time) time.Duration { return l.by }

// TestOneStuckLoopStopsTheHeart: and its next turn starts it again.
func TestOneStuckLoopStopsTheHeart(t *testing.T) {
	steer := newFakeSteering()
	g := &gateway{steer: steer}
	bad := &lateLoop{by: stuckAfter - 1}
	loops := []loop{&lateLoop{}, bad}
	now := time.Unix(1000, 0)
	g.beatOnce(loops, now)
	require.Equal(t, 1, steer.beats)
	bad.by = stuckAfter
	g.beatOnce(loops, now.Add(beatInterval))
	bad.by = time.Hour
	g.beatOnce(loops, now.Add(2*beatInterval))
	require.Equal(t, 1, steer.beats)
	require.Equal(t, now, g.beat.load())
	bad.by = 0
	g.beatOnce(loops, now.Add(time.Second))
	require.Equal(t, 2, steer.beats)
}
