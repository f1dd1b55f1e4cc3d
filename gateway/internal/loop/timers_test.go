package loop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
