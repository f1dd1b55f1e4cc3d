package flow

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSilenceClockModel: over any sequence of looks the clock is over exactly when
// bytes have been owed for the timeout, and has asked before.
func TestSilenceClockModel(t *testing.T) {
	type glance struct {
		at               time.Time
		sent, got, heard uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		timeout := time.Duration(rapid.IntRange(1, 60_000).Draw(t, "timeout")) * time.Millisecond
		var k SilenceClock
		var past []glance
		now := glance{at: time.Unix(0, 0)}
		asked := time.Duration(0) // counted time since the last question, or since nothing was owed
		for range rapid.IntRange(1, 300).Draw(t, "looks") {
			step := rapid.SampledFrom([]time.Duration{SilenceTurn / 2, SilenceTurn, SilenceTurn, SilenceTurn, time.Hour}).Draw(t, "pause")
			now.at = now.at.Add(step)
			for _, n := range []*uint64{&now.sent, &now.got, &now.heard} {
				if rapid.IntRange(0, 30).Draw(t, "moves") == 0 {
					*n++
				}
			}
			past = append(past, now)

			want, owed := time.Duration(0), false
			for i := 1; i < len(past); i++ {
				fresh := past[i].sent != past[i-1].sent
				news := past[i].got != past[i-1].got || past[i].heard != past[i-1].heard
				switch {
				case news || !owed:
					owed, want = fresh, 0
				default:
					want += min(past[i].at.Sub(past[i-1].at), 2*SilenceTurn)
				}
			}
			ask, over := k.Look(now.sent, now.got, now.heard, now.at, timeout)
			if over != (owed && want >= timeout+silenceGrace) {
				t.Fatalf("over: %v after %v of %v, owed %v", over, want, timeout, owed)
			}
			if asked += min(step, 2*SilenceTurn); ask || !owed || want == 0 {
				asked = 0
			}
			if ask && !owed || asked > min(timeout/3, silenceAsk)+2*SilenceTurn {
				t.Fatalf("owed %v for %v, not asked for %v", owed, want, asked)
			}
		}
	})
}
