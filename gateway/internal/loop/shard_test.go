package loop

import (
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/verbs"
)

// fakeDriver counts its turns and asks for the next one when it is told to.
type fakeDriver struct {
	turns, flushes, arms, disarms atomic.Int64
	next                          atomic.Int64 // ns of wall clock, 0 = no wish
	expired                       chan time.Time
	refuse                        atomic.Int64 // arms to refuse
}

func (d *fakeDriver) Progress(now time.Time) (bool, time.Time) {
	d.turns.Add(1)
	at := d.next.Load()
	if at == 0 {
		return false, time.Time{}
	}
	if now.UnixNano() >= at {
		d.next.Store(0)
		d.expired <- now
		return true, time.Time{}
	}
	return false, time.Unix(0, at)
}

func (d *fakeDriver) Flush() { d.flushes.Add(1) }

func (d *fakeDriver) Arm() bool {
	d.arms.Add(1)
	return d.refuse.Add(-1) < 0
}

func (d *fakeDriver) Disarm() { d.disarms.Add(1) }

func (d *fakeDriver) Close() error { return nil }

func startShard(t *testing.T, drivers ...verbs.Driver) *Shard {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.drivers = drivers
	s.Start()
	t.Cleanup(func() {
		s.Halt()
		s.CloseFDs()
	})
	return s
}

func TestPostsRunInOrder(t *testing.T) {
	s := startShard(t)
	var got []int
	for i := range 1000 {
		s.Post(func() { got = append(got, i) })
	}
	s.Call(func() {})
	require.Len(t, got, 1000)
	for i, n := range got {
		require.Equal(t, i, n)
	}
}

// TestNoLostWakeUp: a post finds the loop at any point of falling asleep; one
// that is lost costs a rest.
func TestNoLostWakeUp(t *testing.T) {
	const tardy = 40 * time.Millisecond
	s := startShard(t, &fakeDriver{})
	var slow, stalls atomic.Int64
	var wg, watch sync.WaitGroup
	over := make(chan struct{})
	watch.Go(func() { // how often the machine itself is as slow
		for last := time.Now(); ; {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
			if now := time.Now(); now.Sub(last) > tardy/2 {
				stalls.Add(1)
			}
			last = time.Now()
		}
	})
	for p := range 4 {
		wg.Go(func() {
			for i := range 500 {
				start := time.Now()
				s.Call(func() {})
				if time.Since(start) > tardy {
					slow.Add(1)
				}
				if i%50 == p { // long enough for the loop to sleep as a goroutine does
					time.Sleep(busyTail + time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	close(over)
	watch.Wait()
	t.Logf("%d calls were late, %d stalls of the machine", slow.Load(), stalls.Load())
	require.Less(t, slow.Load(), 100+8*stalls.Load(), "a busy machine excuses some, not a lost wake-up each")
}

// TestDriverIsCalledInTime: its wish shortens the sleep.
func TestDriverIsCalledInTime(t *testing.T) {
	d := &fakeDriver{expired: make(chan time.Time, 1)}
	s := startShard(t, d)
	time.Sleep(2 * busyTail) // asleep
	late := time.Duration(1 << 62)
	for i := 0; i < 5 || i < 100 && late >= 20*time.Millisecond; i++ {
		at := time.Now().Add(15 * time.Millisecond)
		s.Call(func() { d.next.Store(at.UnixNano()) })
		now := <-d.expired
		require.False(t, now.Before(at))
		late = min(late, now.Sub(at))
	}
	require.Less(t, late, 20*time.Millisecond)
}

// TestArmedOnlyAroundSleep: a driver that refuses to be armed is asked for
// progress, and every Arm has its Disarm.
func TestArmedOnlyAroundSleep(t *testing.T) {
	d := &fakeDriver{}
	s := startShard(t, d)
	time.Sleep(2 * busyTail)
	before := d.turns.Load()
	s.Call(func() { d.refuse.Store(100) })
	require.Eventually(t, func() bool { return d.turns.Load() >= before+100 }, 30*time.Second, time.Millisecond)
	s.Halt()
	require.Equal(t, d.arms.Load(), d.disarms.Load())
	require.GreaterOrEqual(t, d.flushes.Load(), d.turns.Load()-1)
}

// TestShardAtRest: a loop without work turns once a rest, and is not late.
func TestShardAtRest(t *testing.T) {
	d := &fakeDriver{}
	s := startShard(t, d)
	require.Eventually(t, func() bool { // it rests, once it has had a processor
		return s.asleep.Load() && time.Until(s.made.Add(time.Duration(s.due.Load()))) > 2*busyTail
	}, patience, time.Millisecond)
	begun, before := time.Now(), d.turns.Load()
	require.Eventually(t, func() bool { return s.Late(time.Now()) == 0 }, patience, time.Millisecond)
	time.Sleep(2 * shardRest)
	n := d.turns.Load() - before
	require.LessOrEqual(t, n, int64(time.Since(begun)/shardRest)+2)
	require.Eventually(t, func() bool { return d.turns.Load() >= before+2 }, patience, time.Millisecond)
	require.Eventually(t, func() bool { // unless it turns in between
		due := s.made.Add(time.Duration(s.due.Load()))
		return s.Late(due) == 0 && s.Late(due.Add(time.Second)) == time.Second
	}, patience, time.Millisecond, "one that does not come back")
}

// TestLateShard: one that hangs in its turn is late, and so is one that sleeps
// and is not let do what was posted.
func TestLateShard(t *testing.T) {
	s := startShard(t)
	hang := make(chan struct{})
	s.Post(func() { <-hang })
	require.Eventually(t, func() bool { return s.Late(time.Now()) >= 2*busyTail }, patience, time.Millisecond)
	close(hang)
	require.Eventually(t, func() bool { return s.Late(time.Now()) < 2*busyTail }, patience, time.Millisecond)

	asleep, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer asleep.CloseFDs()
	asleep.due.Store(int64(time.Hour))
	asleep.asleep.Store(true)
	require.Zero(t, asleep.Late(time.Now()))
	asleep.Post(func() {})
	asleep.Post(func() {})
	require.GreaterOrEqual(t, asleep.Late(time.Now().Add(time.Second)), time.Second)
	asleep.runPosted()
}

// TestCollectorPasses: a loop of raw system calls is stopped by the garbage
// collector like any other.
func TestCollectorPasses(t *testing.T) {
	s := startShard(t)
	var stop atomic.Bool
	var spin func()
	spin = func() {
		if !stop.Load() {
			s.Post(spin)
		}
	}
	s.Post(spin)
	defer stop.Store(true)
	for range 5 {
		start := time.Now()
		runtime.GC()
		require.Less(t, time.Since(start), patience)
	}
}

// TestNobodyWaitsForAStoppedShard: what is posted before, during and after the
// end runs, once.
func TestNobodyWaitsForAStoppedShard(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.Start()
	var ran, posted atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 300 {
				posted.Add(1)
				s.Post(func() { ran.Add(1) })
				s.Call(func() {})
			}
		})
	}
	time.Sleep(time.Millisecond)
	s.Halt()
	wg.Wait()
	s.CloseFDs()
	s.Post(func() { ran.Add(1) })
	require.Equal(t, posted.Load()+1, ran.Load())
}

// TestShardThatNeverStarted closes like one that did.
func TestShardThatNeverStarted(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ran := false
	s.Post(func() { s.Post(func() { ran = true }) })
	s.Halt()
	s.CloseFDs()
	require.True(t, ran, "posted by what was posted")
}

// TestPostsBehindTheEndRunOneAtATime: what goroutines post when the loop has ended has the shard's state for
// itself as before, and all of it runs, also what it posts in turn.
func TestPostsBehindTheEndRunOneAtATime(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.Start()
	s.Halt()
	defer s.CloseFDs()
	const posters, posts = 8, 200
	var ran, inTurn int // the shard's
	var all sync.WaitGroup
	for range posters {
		all.Go(func() {
			for range posts {
				s.Post(func() {
					ran++
					s.Post(func() { inTurn++ })
				})
				s.Call(func() { ran++ })
			}
		})
	}
	all.Wait()
	s.Call(func() {
		assert.Equal(t, 2*posters*posts, ran)
		assert.Equal(t, posters*posts, inTurn)
	})
}

// TestAPanicOfNobodyIsNotSurvived: a shard without an owner for its work does
// not go on after a panic.
func TestAPanicOfNobodyIsNotSurvived(t *testing.T) {
	var log strings.Builder
	s, err := New(3, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	defer s.CloseFDs()
	require.PanicsWithValue(t, "test", func() { s.call([]func(){func() { panic("test") }}, 0) })
	require.Contains(t, log.String(), "shard=3")
	require.Contains(t, log.String(), "shard_test.go")
}

// patience bounds the wait for what has to happen, on however slow a machine.
const patience = 30 * time.Second

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// fakeBulk is a member with so many bytes to move.
type fakeBulk struct {
	s           *Shard
	bytes, most int
	steps       *[]*fakeBulk
}

func (b *fakeBulk) Owner() Owner { return nil }

func (b *fakeBulk) Stop() {}

func (b *fakeBulk) Step() int {
	*b.steps = append(*b.steps, b)
	n := min(b.bytes, b.most)
	if b.bytes -= n; b.bytes > 0 {
		b.s.LaterBulk(b)
	}
	return n
}

// TestBulkTurns: members step one after the other, and those of a turn no more than its
// budget; small steps count for more than their bytes.
func TestBulkTurns(t *testing.T) {
	s, err := New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer s.CloseFDs()
	var steps []*fakeBulk
	var all []*fakeBulk
	for range 3 {
		b := &fakeBulk{s: s, bytes: 2 * BulkTurn, most: BulkTurn, steps: &steps}
		all = append(all, b)
		s.LaterBulk(b)
	}
	for i := range 6 {
		require.True(t, s.runBulk())
		require.Len(t, steps, i+1, "one record a turn")
		require.Same(t, all[i%3], steps[i], "in turn")
	}
	require.False(t, s.runBulk())
	for range 100 {
		s.LaterBulk(&fakeBulk{s: s, bytes: 1, most: 1, steps: &steps})
	}
	steps = nil
	require.True(t, s.runBulk())
	require.Len(t, steps, BulkTurn/bulkStep)
}
