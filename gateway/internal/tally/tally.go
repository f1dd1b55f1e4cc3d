package tally

import (
	"slices"
	"sync"

	"github.com/smcgw/smcgw/gateway/report"
)

// Tally is what was counted by parts that have ended. The zero value is ready to use.
type Tally struct {
	mu   sync.Mutex // guards past
	past report.Snapshot
}

// Sum sets the counters of s: those that live sets, with those of parts that have ended. A
// part counts once, also while it ends.
func (t *Tally) Sum(s *report.Snapshot, live func(*report.Snapshot)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	live(s)
	add(s, &t.past)
}

// End takes in the counters of a part, which last sets; live of Sum must not set them after
// it.
func (t *Tally) End(last func(*report.Snapshot)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s report.Snapshot
	last(&s)
	add(&t.past, &s)
}

// add adds counters. Devices of from have ended.
func add(to, from *report.Snapshot) {
	to.Panics += from.Panics
	to.SharesRefused = sum(to.SharesRefused, from.SharesRefused)
	to.Bounds.Wire = sum(to.Bounds.Wire, from.Bounds.Wire)
	for _, n := range from.CQErrors {
		i := slices.IndexFunc(to.CQErrors, func(c report.CQErrorCount) bool { return c.Carrier == n.Carrier && c.Status == n.Status })
		if i < 0 {
			to.CQErrors = append(to.CQErrors, n)
			continue
		}
		to.CQErrors[i].Count += n.Count
	}
	for _, d := range slices.Concat(from.Ended, from.Devices) {
		i := slices.IndexFunc(to.Ended, func(e report.DeviceInfo) bool { return e.Name == d.Name })
		if i < 0 {
			i = len(to.Ended)
			to.Ended = append(to.Ended, report.DeviceInfo{Name: d.Name, Carrier: d.Carrier})
		}
		to.Ended[i].Counters = sum(to.Ended[i].Counters, d.Counters)
	}
	addDatagrams(to, from)
}

func addDatagrams(to, from *report.Snapshot) {
	if to.UDP.Flows == nil {
		to.UDP.Flows, to.UDP.Bytes = map[report.Carrier]report.FlowCount{}, map[report.Carrier]report.ByteCount{}
	}
	for by, n := range from.UDP.Flows { // none of them is carried now
		to.UDP.Flows[by] = report.FlowCount{Now: to.UDP.Flows[by].Now, Total: to.UDP.Flows[by].Total + n.Total}
	}
	for by, n := range from.UDP.Bytes {
		to.UDP.Bytes[by] = report.ByteCount{Tx: to.UDP.Bytes[by].Tx + n.Tx, Rx: to.UDP.Bytes[by].Rx + n.Rx}
	}
	to.UDP.Native = sum(to.UDP.Native, from.UDP.Native)
	d, f := &to.Datagrams, &from.Datagrams
	d.Sent, d.Received, d.Dropped = sum(d.Sent, f.Sent), sum(d.Received, f.Received), sum(d.Dropped, f.Dropped)
	d.Delivered += f.Delivered
	d.Returned += f.Returned
	r, m := &d.Resolution, &f.Resolution
	r.Queries += m.Queries
	r.Answers += m.Answers
	r.Refusals += m.Refusals
	r.Asked += m.Asked
	r.Answered += m.Answered
	r.Refused += m.Refused
	r.Ignored += m.Ignored
}

// sum adds to the counters of a map, which it makes if there is none.
func sum[K comparable](to, from map[K]uint64) map[K]uint64 {
	if to == nil && from != nil {
		to = make(map[K]uint64, len(from))
	}
	for k, n := range from {
		to[k] += n
	}
	return to
}
