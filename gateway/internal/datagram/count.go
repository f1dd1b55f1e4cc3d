package datagram

import (
	"slices"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// carriers are the possible carriers of datagrams, in the order of their counters.
var carriers = [...]negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft, negotiate.CarrierHW}

// counters holds the totals since the start. Per-datagram counts are atomic: the shard writes
// them, and others read them.
type counters struct {
	sent, received, txBytes, rxBytes [negotiate.CarrierHW + 1]atomic.Uint64
	delivered, returned              atomic.Uint64
	dropped                          [7]atomic.Uint64 // in the order of DatagramDrops
	queries, answers, refusals       atomic.Uint64
	asked, answered, refused         atomic.Uint64
	ignored, resolverIgnored         atomic.Uint64
}

func (c *counters) drop(why report.DatagramDrop) {
	c.dropped[slices.Index(drops[:], why)].Add(1)
}

// drops caches DatagramDrops to avoid allocation.
var drops = [7]report.DatagramDrop(report.DatagramDrops())

// emptySnapshot sets s to the values of a gateway without datagrams.
func emptySnapshot(s *report.Snapshot) {
	s.UDP = report.ProtoStats{Flows: map[report.Carrier]report.FlowCount{}, Bytes: map[report.Carrier]report.ByteCount{}, Native: map[string]uint64{}}
	d := &s.Datagrams
	d.Sent, d.Received, d.Dropped = map[report.Carrier]uint64{}, map[report.Carrier]uint64{}, map[report.DatagramDrop]uint64{}
}

// snapshot sets the counters of s.
func (c *counters) snapshot(s *report.Snapshot) {
	d := &s.Datagrams
	for _, k := range carriers {
		name := report.Carrier(k.String())
		d.Sent[name], d.Received[name] = c.sent[k].Load(), c.received[k].Load()
		s.UDP.Bytes[name] = report.ByteCount{Tx: c.txBytes[k].Load(), Rx: c.rxBytes[k].Load()}
	}
	d.Delivered, d.Returned = c.delivered.Load(), c.returned.Load()
	for i, why := range drops {
		d.Dropped[why] = c.dropped[i].Load()
	}
	d.Resolution = report.ResolutionStats{
		Queries: c.queries.Load(), Answers: c.answers.Load(), Refusals: c.refusals.Load(),
		Asked: c.asked.Load(), Answered: c.answered.Load(), Refused: c.refused.Load(), Ignored: c.ignored.Load() + c.resolverIgnored.Load(),
	}
}
