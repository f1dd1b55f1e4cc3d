package flow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestStallClockModel: over any sequence of looks the clock fires exactly when
// the direction has been stuck at the same offset for the timeout of time in
// which the peer was heard.
func TestStallClockModel(t *testing.T) {
	const timeout = time.Minute
	type glance struct {
		at           time.Time
		stuck        bool
		moved, heard uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		var k StallClock
		var past []glance
		now := glance{at: time.Unix(0, 0)}
		for range rapid.IntRange(1, 60).Draw(t, "looks") {
			now.at = now.at.Add(rapid.SampledFrom([]time.Duration{
				time.Second, timeout / StallLooks, timeout / StallLooks, timeout, time.Hour,
			}).Draw(t, "pause"))
			now.stuck = rapid.IntRange(0, 9).Draw(t, "stuck") > 0
			if rapid.IntRange(0, 9).Draw(t, "moves") == 0 {
				now.moved++
			}
			if rapid.IntRange(0, 3).Draw(t, "hears") > 0 {
				now.heard++
			}
			past = append(past, now)

			want := time.Duration(0) // backwards, from the last look
			for i := len(past) - 1; i > 0 && past[i].stuck && past[i-1].stuck && past[i].moved == past[i-1].moved; i-- {
				if past[i].heard != past[i-1].heard {
					want += min(past[i].at.Sub(past[i-1].at), timeout/StallLooks)
				}
			}
			fired := k.Look(now.stuck, now.moved, now.heard, now.at, timeout)
			if fired != (want >= timeout) {
				t.Fatalf("fired: %v after %v", fired, want)
			}
		}
	})
}

// TestStallClockAlwaysFires: looks a quarter of the timeout apart at a direction
// that is stuck, with a peer that lives, are over after five.
func TestStallClockAlwaysFires(t *testing.T) {
	var k StallClock
	now := time.Unix(0, 0)
	for i := range uint64(StallLooks) {
		require.False(t, k.Look(true, 7, i, now, time.Minute), i)
		now = now.Add(15 * time.Second)
	}
	require.True(t, k.Look(true, 7, 99, now, time.Minute))
}
