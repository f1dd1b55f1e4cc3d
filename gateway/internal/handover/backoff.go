package handover

import "time"

// Backoff spaces attempts that fail.
type Backoff struct {
	pause time.Duration // 0: none has failed
	until time.Time
	said  string // the last error
}

// Bounds of the pause between attempts.
const (
	leastBackoff = time.Second
	mostBackoff  = 5 * time.Minute
)

// Over reports whether it is time for an attempt.
func (b *Backoff) Over(now time.Time) bool { return !now.Before(b.until) }

// Note takes in what came of one, and reports whether it is news.
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
