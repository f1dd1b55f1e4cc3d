package handover

import "time"

// Backoff spaces out attempts after failures.
type Backoff struct {
	pause time.Duration // 0: the last did not fail
	until time.Time
	said  string // the latest error
}

// Bounds of the pause between attempts; it doubles with each failure.
const (
	leastBackoff = time.Second
	mostBackoff  = 5 * time.Minute
)

// Over reports whether it is time for an attempt.
func (b *Backoff) Over(now time.Time) bool { return !now.Before(b.until) }

// Note records the outcome of an attempt, and reports whether it is an error other than the previous one.
func (b *Backoff) Note(err error, now time.Time) bool {
	if err == nil {
		*b = Backoff{}
		return false
	}
	b.pause = min(max(2*b.pause, leastBackoff), mostBackoff)
	b.until = now.Add(b.pause)
	news := b.said != err.Error()
	b.said = err.Error()
	return news
}
