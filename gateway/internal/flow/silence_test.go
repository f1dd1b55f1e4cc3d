package flow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// silenceGlance is what one look finds.
type silenceGlance struct {
	at               time.Time
	sent, got, heard uint64
}

// silenceTime is for how long bytes have been owed after all looks of the past, by the
// definition.
func silenceTime(past []silenceGlance) (silent time.Duration, owed bool) {
	for i := 1; i < len(past); i++ {
		fresh := past[i].sent != past[i-1].sent
		news := past[i].got != past[i-1].got || past[i].heard != past[i-1].heard
		switch {
		case news || !owed:
			owed, silent = fresh, 0
		default:
			silent += min(past[i].at.Sub(past[i-1].at), 2*SilenceTurn)
		}
	}
	return silent, owed
}

// TestSilenceClockModel: over any sequence of looks the clock is over exactly when
// bytes have been owed for its patience, and has asked before: in time, at once where
// the sender rests, and less and less often.
func TestSilenceClockModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.IntRange(1, 60_000).Draw(t, "timeout")) * time.Millisecond
		flight := rapid.Bool().Draw(t, "flight")
		p, limit, first := TimeoutPatience(timeout), timeout+silenceGrace, min(timeout/3, silenceAsk)
		if flight {
			p, limit, first = FlightPatience(timeout), timeout, silenceAsk
		}
		var k SilenceClock
		var past []silenceGlance
		now := silenceGlance{at: time.Unix(0, 0)}
		waited, questions, rested := time.Duration(0), 0, false // counted time since the last question, or since nothing was owed
		for range rapid.IntRange(1, 300).Draw(t, "looks") {
			step := rapid.SampledFrom([]time.Duration{SilenceTurn / 2, SilenceTurn, SilenceTurn, SilenceTurn, time.Hour}).Draw(t, "pause")
			now.at = now.at.Add(step)
			for _, n := range []*uint64{&now.sent, &now.got, &now.heard} {
				if rapid.IntRange(0, 30).Draw(t, "moves") == 0 {
					*n++
				}
			}
			promised := k.Owed(now.sent, now.got, now.heard)
			fresh := len(past) > 0 && now.sent != past[len(past)-1].sent
			past = append(past, now)
			want, owed := silenceTime(past)
			ask, over := k.Look(now.sent, now.got, now.heard, now.at, p)
			if over != (owed && want >= limit) {
				t.Fatalf("over: %v after %v of %v, owed %v", over, want, timeout, owed)
			}
			if k.Owed(now.sent, now.got, now.heard) != (owed && !over) || k.Idle(now.sent) != !owed {
				t.Fatalf("owed %v, over %v: %+v", owed, over, k)
			}
			if len(past) > 1 && owed && !over && !promised {
				t.Fatalf("owed, which a look without a clock did not know: %+v", k)
			}
			waited += min(step, 2*SilenceTurn)
			rested = owed && want > 0 && !fresh
			if !owed || want == 0 {
				waited, questions = 0, 0
			}
			most := first
			if questions > 0 {
				most = min(timeout/3, time.Second)
				if flight {
					most = min(flightAsk<<(questions-1), flightAskMost)
				}
			}
			early := flight && questions == 0 && rested // the first question need not wait
			switch {
			case ask && (!owed || waited < most && !early):
				t.Fatalf("asked after %v of %v, owed %v", waited, most, owed)
			case ask:
				waited, questions = 0, min(questions+1, 10)
			case owed && (waited >= most+2*SilenceTurn || early):
				t.Fatalf("owed %v for %v, not asked for %v", owed, want, waited)
			}
		}
	})
}

// TestSilenceClockOwes: what nothing takes is owed until the peer is heard or the patience
// ends, and not again before the peer was heard.
func TestSilenceClockOwes(t *testing.T) {
	var k SilenceClock
	p, now := FlightPatience(3*time.Second), time.Unix(0, 0)
	require.False(t, k.Owed(9, 9, 9), "nothing is known yet")
	k.Begin(4, 0, 0, now)
	require.True(t, k.Begun())
	require.True(t, k.Owed(5, 0, 0), "sent after the begin")
	require.False(t, k.Owed(4, 0, 0))
	k.Owe(4, 0, 0, now, p)
	require.True(t, k.Owed(4, 0, 0))
	require.False(t, k.Owed(4, 0, 1), "heard")
	over := false
	for range 12 {
		require.False(t, over)
		now = now.Add(SilenceTurn)
		_, over = k.Look(4, 0, 0, now, p)
	}
	require.True(t, over)
	k.Owe(4, 0, 0, now, p)
	require.False(t, k.Owed(4, 0, 0), "for too long")
	require.False(t, k.Owed(5, 0, 0), "others went before")
	require.True(t, k.Owed(5, 0, 1), "the peer is back")
	_, over = k.Look(4, 0, 1, now, p)
	require.False(t, over)
	require.True(t, k.Idle(4))
	k.Owe(4, 0, 2, now, p)
	require.True(t, k.Owed(4, 0, 2), "heard, and nevertheless")
	require.False(t, k.Owed(4, 0, 3))
	k.Owe(4, 0, 3, now, p)
	require.True(t, k.Owed(4, 0, 3), "heard again")
	require.Equal(t, FlightPatience(retransmissionTime), FlightPatience(0))
}

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
