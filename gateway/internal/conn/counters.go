package conn

import (
	"maps"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Counters holds the totals since the start. They are updated a few times per connection,
// never per byte, so one lock is enough.
type Counters struct {
	mu        sync.Mutex // guards everything below
	flows     map[report.Carrier]uint64
	live      map[*Flow]struct{}                  // carried now
	bytes     map[report.Carrier]report.ByteCount // of flows that have ended or left the carrier
	fallbacks map[fallbackKey]uint64
	handshake map[report.Carrier]*report.Histogram
	durations map[report.Carrier]*report.Histogram
	roundTrip *report.Histogram
	stalls    map[report.Carrier]uint64
	demotions map[report.DemotionCount]uint64 // keys have Count 0
	ends      map[report.EndCount]uint64      // likewise
}

type fallbackKey struct {
	reason negotiate.Reason
	side   report.Side
}

// NewCounters returns counters that are all zero.
func NewCounters() *Counters {
	return &Counters{
		flows: map[report.Carrier]uint64{}, live: map[*Flow]struct{}{}, bytes: map[report.Carrier]report.ByteCount{},
		demotions: map[report.DemotionCount]uint64{},
		fallbacks: map[fallbackKey]uint64{}, handshake: map[report.Carrier]*report.Histogram{},
		stalls: map[report.Carrier]uint64{}, ends: map[report.EndCount]uint64{},
		durations: map[report.Carrier]*report.Histogram{}, roundTrip: report.NewSetupHistogram(),
	}
}

// carried counts a flow that begins to be carried. roundTrip is that of SYN and SYN-ACK; 0
// means unknown. From here until [Counters.Ended] the totals include the flow's bytes.
func (c *Counters) carried(f *Flow, by report.Carrier, after, roundTrip time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live[f] = struct{}{}
	c.flows[by]++
	if c.handshake[by] == nil {
		c.handshake[by] = report.NewSetupHistogram()
	}
	c.handshake[by].Observe(after)
	if roundTrip > 0 {
		c.roundTrip.Observe(roundTrip)
	}
}

// Fallback counts a connection that fell back or that the gateway refused.
func (c *Counters) Fallback(r negotiate.Reason, s report.Side) {
	if r == negotiate.ReasonNone {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fallbacks[fallbackKey{r, s}]++
}

// stalled counts a flow that stalled.
func (c *Counters) stalled(by report.Carrier) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stalls[by]++
}

// Ended counts the end of a carried flow and adds its bytes to the totals of its carrier.
func (c *Counters) Ended(f *Flow, info report.ConnInfo) {
	if info.Carrier == report.CarrierNone {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.live, f)
	f.addBytes(c.bytes)
	c.ends[endOf(info)]++
	if c.durations[info.Carrier] == nil {
		c.durations[info.Carrier] = report.NewLifeHistogram()
	}
	c.durations[info.Carrier].Observe(time.Duration(info.AgeSeconds * float64(time.Second)))
}

// endOf returns the key under which the end of a carried connection is counted.
func endOf(info report.ConnInfo) report.EndCount {
	if info.End != report.EndAborted {
		return report.EndCount{Reason: string(report.EndClosed), Side: info.Side}
	}
	return report.EndCount{Reason: info.Reason, Side: info.Side, DecidedBy: info.DecidedBy}
}

// demoted counts a flow that leaves a carrier for the relay, together with the bytes it
// carried so far. The view of the flow changes under the lock, so that none is counted twice.
func (c *Counters) demoted(f *Flow, from report.Carrier, cause string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.addBytes(c.bytes)
	f.show(func(v *view) {
		v.carrier, v.demoted, v.booked = report.CarrierRelay, cause, report.ByteCount{Tx: f.tx.Load(), Rx: f.rx.Load()}
	})
	c.demotions[report.DemotionCount{Carrier: from, Reason: cause}]++
}

// AddEnds copies the counts of ended flows to s.
func (c *Counters) AddEnds(s *report.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addEndsLocked(s)
}

func (c *Counters) addEndsLocked(s *report.Snapshot) {
	for k, n := range c.ends {
		k.Count = n
		s.Ends = append(s.Ends, k)
	}
}

// AddTo copies the counters to a snapshot whose maps are empty.
func (c *Counters) AddTo(s *report.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(s.FlowsTotal, c.flows)
	maps.Copy(s.BytesTotal, c.bytes)
	for f := range c.live {
		f.addBytes(s.BytesTotal)
	}
	s.Stalls = maps.Clone(c.stalls)
	for by, h := range c.handshake {
		s.Handshakes[by] = h.Snapshot()
	}
	s.Durations = map[report.Carrier]report.HistogramSnapshot{}
	for by, h := range c.durations {
		s.Durations[by] = h.Snapshot()
	}
	s.RoundTrips = c.roundTrip.Snapshot()
	for k, n := range c.demotions {
		k.Count = n
		s.Demotions = append(s.Demotions, k)
	}
	c.addEndsLocked(s)
	for k, n := range c.fallbacks {
		s.AddFallback(k.reason, k.side, n)
	}
}
