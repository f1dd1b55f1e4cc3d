package gateway

import (
	"errors"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/negotiate"
)

// TestMailboxLosesNothing: what put took is run by the owner or returned by
// close; what it refused is neither.
func TestMailboxLosesNothing(t *testing.T) {
	m := newMailbox()
	var taken, ran atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for m.put(func() { ran.Add(1) }) {
				taken.Add(1)
			}
		})
	}
	for range 200 {
		<-m.wake
		for _, fn := range m.take() {
			fn()
		}
	}
	for _, fn := range m.close() {
		fn()
	}
	wg.Wait()
	require.Equal(t, taken.Load(), ran.Load())
	require.Empty(t, m.close())
	require.False(t, m.put(func() {}))
	m.signal() // of a wire that does not know yet
	m.signal()
}

// TestLegEndsAsPlanned: reset until it is clean, taken or not, and once.
func TestLegEndsAsPlanned(t *testing.T) {
	for _, taken := range []bool{false, true} {
		for _, clean := range []bool{false, true} {
			app, conn := legPair(t)
			leg := newAppLeg(conn, Tuple{})
			if taken {
				fd, err := leg.take()
				require.NoError(t, err)
				_, err = unix.Write(fd, []byte("x"))
				require.NoError(t, err)
			} else {
				_, err := conn.Write([]byte("x"))
				require.NoError(t, err)
			}
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
			require.True(t, leg.delivered())
			_ = app.Close()
		}
	}
}

// TestLegTakenWhileReset: whoever comes first, the descriptor is closed by the
// leg or never made, and the application sees a reset.
func TestLegTakenWhileReset(t *testing.T) {
	for range 50 {
		app, conn := legPair(t)
		leg := newAppLeg(conn, Tuple{})
		var wg sync.WaitGroup
		wg.Go(func() {
			if fd, err := leg.take(); err != nil {
				require.ErrorIs(t, err, errLegClosed)
				require.Equal(t, -1, fd)
			}
		})
		wg.Go(leg.reset)
		wg.Wait()
		_, err := app.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_ = app.Close()
	}
}

// TestResetWhoseErrorIsSpent: the end that reads find afterwards is none.
func TestResetWhoseErrorIsSpent(t *testing.T) {
	app, conn := legPair(t)
	leg := newAppLeg(conn, Tuple{})
	require.False(t, leg.wasReset())
	require.NoError(t, app.SetLinger(0))
	require.NoError(t, app.Close())
	var err error
	for err == nil {
		_, err = conn.Write([]byte("x")) // takes the error
	}
	_, err = conn.Read(make([]byte, 1))
	require.True(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET))
	require.True(t, leg.wasReset())
	leg.reset()

	app, conn = legPair(t)
	leg = newAppLeg(conn, Tuple{})
	require.NoError(t, app.CloseWrite())
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.False(t, leg.wasReset(), "half closed")
	leg.closeWrite()
	_, _ = io.ReadAll(app)
	require.NoError(t, app.Close())
	require.Eventually(t, leg.delivered, 30*time.Second, time.Millisecond)
	require.False(t, leg.wasReset(), "closed in order")
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

// TestBusySince: a loop is late while it is with one thing, and never while it
// waits.
func TestBusySince(t *testing.T) {
	var b BusySince
	at := time.Unix(1000, 0)
	require.Zero(t, b.Late(at))
	b.Begin(at)
	require.Zero(t, b.Late(at.Add(-1)))
	require.Equal(t, time.Second, b.Late(at.Add(time.Second)))
	b.End()
	require.Zero(t, b.Late(at.Add(time.Hour)))
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
	require.Equal(t, now.UnixNano(), g.beat.Load())
	bad.by = 0
	g.beatOnce(loops, now.Add(time.Second))
	require.Equal(t, 2, steer.beats)
}
