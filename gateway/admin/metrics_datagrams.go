package admin

import "github.com/smcgw/smcgw/gateway/config"

// collectDatagrams sends what is counted about datagrams of UDP programs.
func (c *collector) collectDatagrams(s Snapshot, e emitter) {
	d := c.descs
	all := Stats{Protocols: map[config.Proto]ProtoStats{config.ProtoUDP: s.UDP}, Datagrams: s.Datagrams}.filled()
	udp, n := all.Protocols[config.ProtoUDP], all.Datagrams
	for carrier, flows := range udp.Flows {
		e.gauge(d.dgramFlows, float64(flows.Now), string(carrier))
		e.counter(d.dgramFlowsTotal, flows.Total, string(carrier))
	}
	for carrier, b := range udp.Bytes {
		e.counter(d.dgramBytes, b.Tx, string(carrier), "tx")
		e.counter(d.dgramBytes, b.Rx, string(carrier), "rx")
	}
	for reason, count := range udp.Native {
		e.counter(d.dgramNative, count, reason)
	}
	e.counter(d.dgrams, sum(n.Sent), "tx", "sent")
	e.counter(d.dgrams, n.Returned, "tx", "returned")
	e.counter(d.dgrams, sum(n.Received), "rx", "received")
	e.counter(d.dgrams, n.Delivered, "rx", "delivered")
	for cause, count := range n.Dropped {
		e.counter(d.dgramsDropped, count, string(cause))
	}
	for result, count := range map[string]uint64{
		"sent": n.Resolution.Queries, "answer": n.Resolution.Answers, "refusal": n.Resolution.Refusals,
		"asked": n.Resolution.Asked, "answered": n.Resolution.Answered, "refused": n.Resolution.Refused,
		"ignored": n.Resolution.Ignored,
	} {
		e.counter(d.dgramQueries, count, result)
	}
}

// sum adds the counters of all carriers.
func sum(counts map[config.Carrier]uint64) (total uint64) {
	for _, n := range counts {
		total += n
	}
	return total
}
