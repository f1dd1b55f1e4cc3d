package loop

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

// peekDriver has work as soon as it has been asked for it often enough.
type peekDriver struct {
	fakeDriver
	peeks, readyAt int
}

func (d *peekDriver) Ready() bool {
	d.peeks++
	return d.readyAt > 0 && d.peeks >= d.readyAt
}

// idleShard is a shard that is not running.
func idleShard(t *testing.T, drivers ...verbs.Driver) *Shard {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Halt()
		s.CloseFDs()
	})
	for _, d := range drivers {
		s.AddDriver(d)
	}
	s.spinner.limit = time.Minute // the test says when it ends
	return s
}

func TestSpinFindsWorkOfADevice(t *testing.T) {
	d := &peekDriver{readyAt: spinPeeks / 2}
	s := idleShard(t, &fakeDriver{}, d)
	events := make([]unix.EpollEvent, 4)
	n, found := s.spin(events)
	require.True(t, found)
	require.Zero(t, n, "no descriptor has to do with it")
	require.GreaterOrEqual(t, d.peeks, d.readyAt)
}

func TestSpinFindsEventsAndPosts(t *testing.T) {
	s := idleShard(t, &peekDriver{})
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, s.Add(fd))
	events := make([]unix.EpollEvent, 4)
	n, found := s.spin(events)
	require.True(t, found)
	require.Equal(t, 1, n)
	require.Equal(t, int32(fd), events[0].Fd)

	s.Post(func() {})
	_, found = s.spin(events)
	require.True(t, found)
}

func TestSpinEndsAtItsLimit(t *testing.T) {
	d := &peekDriver{}
	s := idleShard(t, d)
	s.spinner.limit = 50 * time.Microsecond
	_, found := s.spin(make([]unix.EpollEvent, 4))
	require.False(t, found)
	require.NotZero(t, d.peeks)
}

// TestSpinScore: spinning rests when sleeps are long, whatever it found before,
// and not when they are short; one spin is enough for one end of work.
func TestSpinScore(t *testing.T) {
	const limit = 20 * time.Microsecond
	now := time.Now()
	sp := spinner{limit: limit, fresh: true}
	require.True(t, sp.wanted(now))
	require.False(t, sp.wanted(now), "there was no work since")

	for range 10 * spinFruitless {
		sp.woke(now.Add(spinShort*limit), now)
	}
	sp.fresh = true
	require.True(t, sp.wanted(now), "short sleeps are no reason to rest")
	require.GreaterOrEqual(t, sp.short, spinEagerTurns)

	for range spinFruitless {
		sp.woke(now.Add(time.Millisecond), now)
	}
	woken := now.Add(time.Millisecond)
	sp.fresh = true
	require.False(t, sp.wanted(woken))
	sp.fresh = true
	require.False(t, sp.wanted(woken.Add(spinRest-1)))
	sp.fresh = true
	require.True(t, sp.wanted(woken.Add(spinRest)))
}

// TestSpinIsEagerNowAndThen: after a number of short sleeps one spin is longer.
func TestSpinIsEagerNowAndThen(t *testing.T) {
	s := idleShard(t, &peekDriver{})
	s.spinner.limit = 10 * time.Microsecond
	s.spinner.short = spinEagerTurns
	start := time.Now()
	_, found := s.spin(make([]unix.EpollEvent, 4))
	require.False(t, found)
	require.Zero(t, s.spinner.short)
	if s.spinner.fruitless == 0 { // no yield ended it
		require.GreaterOrEqual(t, time.Since(start), spinEager*s.spinner.limit)
	}
}

// TestSpinningShardTakesPosts: nothing is lost between spinning and sleeping.
func TestSpinningShardTakesPosts(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.AddDriver(&fakeDriver{})
	s.Start()
	defer func() {
		s.Halt()
		s.CloseFDs()
	}()
	var ran atomic.Int64
	for i := range 2000 {
		s.Call(func() { ran.Add(1) })
		if i%100 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	require.Equal(t, int64(2000), ran.Load())
}

// streamDriver moves a stream until it has been asked often enough.
type streamDriver struct {
	fakeDriver
	left int
}

func (d *streamDriver) Streams() bool {
	d.left--
	return d.left >= 0
}

// TestNap: in a stream the shard sleeps without being armed, and looks again; afterwards it is armed.
func TestNap(t *testing.T) {
	d := &streamDriver{left: 2}
	s := idleShard(t, &fakeDriver{}, d)
	events := make([]unix.EpollEvent, 4)
	for range 2 {
		now := time.Now()
		s.wait(events, now, now, false, false)
		require.Zero(t, d.arms.Load())
	}
	now := time.Now()
	s.wait(events, now, now, false, false)
	require.Equal(t, int64(1), d.arms.Load())
	s.DropDriver(d)
	require.False(t, s.streams())
	require.Negative(t, d.left)
}
