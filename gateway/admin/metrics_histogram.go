package admin

import (
	"sync/atomic"
	"time"
)

// handshakeBounds are the upper bounds of the handshake histogram. The default
// deadline is 200 ms plus four round trips, so the range is 50 us to 2 s.
var handshakeBounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second,
}

// Histogram counts durations in fixed buckets. The zero value is ready. It is
// safe for concurrent use and never allocates on Observe.
type Histogram struct {
	buckets [len(handshakeBounds) + 1]atomic.Uint64
	sum     atomic.Int64
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	i := 0
	for i < len(handshakeBounds) && d > handshakeBounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
}

// HistogramSnapshot is a copy of a Histogram, with cumulative buckets keyed by
// their upper bound in seconds as Prometheus has them.
type HistogramSnapshot struct {
	Count   uint64
	Sum     float64
	Buckets map[float64]uint64
}

// Snapshot copies the counts. Buckets read while others observe may be one
// observation apart from Sum.
func (h *Histogram) Snapshot() HistogramSnapshot {
	s := HistogramSnapshot{Buckets: make(map[float64]uint64, len(handshakeBounds))}
	for i, bound := range handshakeBounds {
		s.Count += h.buckets[i].Load()
		s.Buckets[bound.Seconds()] = s.Count
	}
	s.Count += h.buckets[len(handshakeBounds)].Load()
	s.Sum = time.Duration(h.sum.Load()).Seconds()
	return s
}
