package gateway

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// dgramCarriers are those that datagrams can have, in the order of their
// counters.
var dgramCarriers = [...]negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft, negotiate.CarrierHW}

// dgramCounters are the totals since the start. What is counted per datagram is
// atomic: the shard writes, others read.
type dgramCounters struct {
	sent, received, txBytes, rxBytes [negotiate.CarrierHW + 1]atomic.Uint64
	delivered, returned              atomic.Uint64
	dropped                          [7]atomic.Uint64 // as DatagramDrops
	queries, answers, refusals       atomic.Uint64
	asked, answered, refused         atomic.Uint64
	ignored, resolverIgnored         atomic.Uint64

	mu    sync.Mutex // guards everything below
	flows map[config.Carrier]admin.FlowCount
}

func newDgramCounters() *dgramCounters {
	return &dgramCounters{flows: map[config.Carrier]admin.FlowCount{}}
}

func (c *dgramCounters) drop(why admin.DatagramDrop) {
	c.dropped[slices.Index(dgramDrops[:], why)].Add(1)
}

// dgramDrops is DatagramDrops without allocating.
var dgramDrops = [7]admin.DatagramDrop(admin.DatagramDrops())

func (c *dgramCounters) flowBegun(by config.Carrier) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.flows[by]
	n.Now++
	n.Total++
	c.flows[by] = n
}

func (c *dgramCounters) flowEnded(by config.Carrier) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.flows[by]
	n.Now--
	c.flows[by] = n
}

// snapshot adds the counters to s.
func (e *dgramEngine) snapshot(s *admin.Snapshot) {
	s.UDP = admin.ProtoStats{Flows: map[config.Carrier]admin.FlowCount{}, Bytes: map[config.Carrier]admin.ByteCount{}, Native: map[string]uint64{}}
	d := &s.Datagrams
	d.Sent, d.Received, d.Dropped = map[config.Carrier]uint64{}, map[config.Carrier]uint64{}, map[admin.DatagramDrop]uint64{}
	if e == nil {
		return
	}
	c := e.count
	for _, k := range dgramCarriers {
		name := config.Carrier(k.String())
		d.Sent[name], d.Received[name] = c.sent[k].Load(), c.received[k].Load()
		s.UDP.Bytes[name] = admin.ByteCount{Tx: c.txBytes[k].Load(), Rx: c.rxBytes[k].Load()}
	}
	d.Delivered, d.Returned = c.delivered.Load(), c.returned.Load()
	for i, why := range dgramDrops {
		d.Dropped[why] = c.dropped[i].Load()
	}
	d.Resolution = admin.ResolutionStats{
		Queries: c.queries.Load(), Answers: c.answers.Load(), Refusals: c.refusals.Load(),
		Asked: c.asked.Load(), Answered: c.answered.Load(), Refused: c.refused.Load(), Ignored: c.ignored.Load() + c.resolverIgnored.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(s.UDP.Flows, c.flows)
}
