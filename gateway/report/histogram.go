package report

import (
	"sync/atomic"
	"time"
)

// Histogram counts durations in fixed buckets. It is safe for concurrent use, and Observe
// never allocates.
type Histogram struct {
	bounds  []time.Duration // upper bounds
	buckets []atomic.Uint64 // one more than bounds, for longer durations
	sum     atomic.Int64
}

// NewSetupHistogram returns a histogram for what happens while a connection begins. The
// default deadline of a negotiation is 200 ms plus four round trips, so the range is 50 us to
// 2 s.
func NewSetupHistogram() *Histogram {
	const us, ms = time.Microsecond, time.Millisecond
	return newHistogram(50*us, 100*us, 250*us, 500*us, ms, 2500*us, 5*ms, 10*ms, 25*ms, 50*ms, 100*ms, 250*ms, 500*ms, time.Second, 2*time.Second)
}

// NewLifeHistogram returns a histogram for the lifetime of connections, from 1 ms to a day.
func NewLifeHistogram() *Histogram {
	const ms, s, m, h = time.Millisecond, time.Second, time.Minute, time.Hour
	return newHistogram(ms, 5*ms, 25*ms, 100*ms, 500*ms, s, 5*s, 30*s, m, 5*m, 30*m, h, 6*h, 24*h)
}

func newHistogram(bounds ...time.Duration) *Histogram {
	return &Histogram{bounds: bounds, buckets: make([]atomic.Uint64, len(bounds)+1)}
}

// Observe counts one duration.
func (h *Histogram) Observe(d time.Duration) {
	i := 0
	for i < len(h.bounds) && d > h.bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(int64(d))
}

// HistogramSnapshot is a copy of a Histogram, with cumulative buckets keyed by their upper
// bound in seconds, as in Prometheus.
type HistogramSnapshot struct {
	Count   uint64
	Sum     float64
	Buckets map[float64]uint64
}

// Snapshot copies the counts. If others observe at the same time, buckets and Sum may differ
// by those observations.
func (h *Histogram) Snapshot() HistogramSnapshot {
	s := HistogramSnapshot{Buckets: make(map[float64]uint64, len(h.bounds))}
	for i, bound := range h.bounds {
		s.Count += h.buckets[i].Load()
		s.Buckets[bound.Seconds()] = s.Count
	}
	s.Count += h.buckets[len(h.bounds)].Load()
	s.Sum = time.Duration(h.sum.Load()).Seconds()
	return s
}
