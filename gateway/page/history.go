package page

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

const (
	// sampleEvery is the interval between two samples; historySize is the number of samples
	// kept: the last five minutes.
	sampleEvery = 3 * time.Second
	historySize = 101
)

// sample holds a gateway's totals at one time. The number of reasons is bounded by those of
// package negotiate.
type sample struct {
	at     time.Time
	flows  int
	bytes  map[report.Carrier]report.ByteCount
	begun  uint64 // connections that began to be carried
	native map[string]uint64
	ended  map[endKey]uint64
	memory uint64 // reserved

	inProcess int // connections
}

// endKey is the key by which the page counts ends.
type endKey struct{ reason, decidedBy string }

// newSample extracts from totals what the page compares.
func newSample(t *report.Snapshot, at time.Time) sample {
	s := sample{
		at: at, bytes: maps.Clone(t.BytesTotal), native: map[string]uint64{}, ended: map[endKey]uint64{}, memory: t.Memory["reserved"],
	}
	s.inProcess = t.InProcess.Connections
	for reason, n := range t.InProcess.Native {
		if n > 0 {
			s.native[reason] += n
		}
	}
	for _, n := range t.Flows {
		s.flows += n
	}
	for _, n := range t.FlowsTotal {
		s.begun += n
	}
	for _, n := range t.Fallbacks {
		s.native[n.Reason] += n.Count
	}
	for _, n := range t.Ends {
		s.ended[endKey{n.Reason, n.DecidedBy}] += n.Count
	}
	return s
}

// history holds the latest samples in a bounded ring. It is safe for concurrent use.
type history struct {
	mu   sync.Mutex // guards everything below
	ring []sample
	next int
}

func (h *history) add(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ring) < historySize {
		h.ring = append(h.ring, s)
	} else {
		h.ring[h.next] = s
	}
	h.next = (h.next + 1) % historySize
}

// list returns the samples, oldest first.
func (h *history) list() []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ring) < historySize {
		return append([]sample(nil), h.ring...)
	}
	return append(append([]sample(nil), h.ring[h.next:]...), h.ring[:h.next]...)
}

// Run takes samples until ctx ends.
func (p *Page) Run(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		t := p.src.Totals()
		p.past.add(newSample(&t, time.Now()))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// rates returns the changes of a counter from sample to sample, per second.
func rates(past []sample, of func(sample) uint64) []float64 {
	var list []float64
	for i := 1; i < len(past); i++ {
		span := past[i].at.Sub(past[i-1].at).Seconds()
		now, before := of(past[i]), of(past[i-1])
		list = append(list, float64(now-min(now, before))/max(span, 0.001))
	}
	return list
}

// values returns one number of every sample.
func values(past []sample, of func(sample) float64) []float64 {
	var list []float64
	for _, s := range past {
		list = append(list, of(s))
	}
	return list
}

// last returns the newest of some values, or 0 if there are none.
func last(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	return list[len(list)-1]
}
