package loop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestTimersAgainstModel: timers run once, in the order of their times, when those
// have come; those that were moved at the new one, those that were stopped never.
func TestTimersAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Shard{}
		due := map[int]time.Time{}
		var ran []int
		all := make([]Timer, 8)
		for i := range all {
			all[i] = NewTimer(func() { ran = append(ran, i) })
		}
		now := time.Unix(1000, 0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(all)-1).Draw(t, "timer")
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				at := now.Add(time.Duration(rapid.IntRange(-3, 20).Draw(t, "in")))
				s.SetTimer(&all[i], at)
				due[i] = at
			case 1:
				s.SetTimer(&all[i], time.Time{})
				delete(due, i)
			default:
				now = now.Add(time.Duration(rapid.IntRange(0, 10).Draw(t, "passes")))
				ran = nil
				worked := s.runTimers(now)
				require.Equal(t, len(ran) > 0, worked)
				var last time.Time
				for _, k := range ran {
					require.False(t, due[k].IsZero(), "not set")
					require.False(t, due[k].After(now), "too early")
					require.False(t, due[k].Before(last), "out of order")
					last = due[k]
					delete(due, k)
				}
			}
			require.Len(t, s.timers, len(due))
		}
		ran = nil
		s.runTimers(now.Add(time.Hour))
		require.Len(t, ran, len(due))
		require.Empty(t, s.timers)
	})
}

// TestTimerWakesTheLoop: a loop that sleeps wakes up for a timer, and not for one
// that was stopped.
func TestTimerWakesTheLoop(t *testing.T) {
	s := startShard(t)
	ran := make(chan string, 2)
	s.Call(func() {
		stop := s.After(time.Millisecond, func() { ran <- "stopped" })
		s.After(5*time.Millisecond, func() { ran <- "kept" })
		stop()
		stop()
	})
	require.Equal(t, "kept", <-ran)
}

// TestPostReachesASleeper: whenever it is posted, a loop that sleeps, or is about
// to, runs it.
func TestPostReachesASleeper(t *testing.T) {
	s := startShard(t)
	for range 200 {
		ran := make(chan struct{})
		s.Post(func() { s.Post(func() { close(ran) }) })
		<-ran
		time.Sleep(50 * time.Microsecond) // asleep, or about to be
	}
}

// A timer that was never made stops none: neither of another flow, nor of none.
func TestStopOfNoTimer(t *testing.T) {
	s, ran := &Shard{}, 0
	var none Timer
	require.False(t, none.Pending())
	s.SetTimer(&none, time.Time{})
	other := NewTimer(func() { ran++ })
	s.SetTimer(&other, time.Unix(1000, 0))
	s.SetTimer(&none, time.Time{})
	s.runTimers(time.Unix(1001, 0))
	require.Equal(t, 1, ran)
}
