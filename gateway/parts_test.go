package gateway

import (
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/process"
)

// TestLegEndsAsPlanned: reset until it is clean, in a relay or not, and once.
func TestLegEndsAsPlanned(t *testing.T) {
	for _, relayed := range []bool{false, true} {
		for _, clean := range []bool{false, true} {
			app, fd := legPair(t)
			leg := newAppLeg(fd, host.Tuple{})
			if relayed {
				require.NoError(t, leg.forRelay())
				_, err := leg.conn.Write([]byte("x"))
				require.NoError(t, err)
				require.ErrorIs(t, leg.forRelay(), errLegClosed, "once")
			} else {
				fd, err := leg.take()
				require.NoError(t, err)
				require.GreaterOrEqual(t, fd, process.LegFloor)
				_, err = unix.Write(fd, []byte("x"))
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
			require.ErrorIs(t, leg.forRelay(), errLegClosed)
			_ = app.Close()
		}
	}
}

// TestLegRelayedWhileReset: whoever comes first, the socket is closed once and the
// application sees a reset.
func TestLegRelayedWhileReset(t *testing.T) {
	for range 50 {
		app, fd := legPair(t)
		leg := newAppLeg(fd, host.Tuple{})
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := leg.forRelay(); err != nil {
				require.ErrorIs(t, err, errLegClosed)
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
	app, fd := legPair(t)
	leg := newAppLeg(fd, host.Tuple{})
	require.NoError(t, leg.forRelay())
	require.False(t, leg.wasReset())
	require.NoError(t, app.SetLinger(0))
	require.NoError(t, app.Close())
	var err error
	for err == nil {
		_, err = leg.conn.Write([]byte("x")) // takes the error
	}
	_, err = leg.conn.Read(make([]byte, 1))
	require.True(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET))
	require.True(t, leg.wasReset())
	leg.reset()

	app, fd = legPair(t)
	leg = newAppLeg(fd, host.Tuple{})
	require.NoError(t, leg.forRelay())
	require.NoError(t, app.CloseWrite())
	_, err = leg.conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.False(t, leg.wasReset(), "half closed")
	leg.closeWrite()
	_, _ = io.ReadAll(app)
	require.NoError(t, app.Close())
	require.Eventually(t, leg.delivered, 30*time.Second, time.Millisecond)
	require.False(t, leg.wasReset(), "closed in order")
	leg.clean()
}

// lateLoop is a loop that is late by so much.
type lateLoop struct{ by time.Duration }

func (l *lateLoop) Late(time.Time) time.Duration { return l.by }

// TestOneStuckLoopStopsTheHeart: and its next turn starts it again.
func TestOneStuckLoopStopsTheHeart(t *testing.T) {
	steer := newFakeSteering()
	g := &gateway{steer: steer}
	bad := &lateLoop{by: stuckAfter - 1}
	loops := []lagging{&lateLoop{}, bad}
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
