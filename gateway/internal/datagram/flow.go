package datagram

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

const (
	// flowIdle is how long a flow without datagrams is kept; declinedIdle is the same for one
	// that the policy does not select.
	flowIdle     = 60 * time.Second
	declinedIdle = time.Second
	// peerShare is the divisor that gives one peer's share of all flows.
	peerShare = 4
	// nativeEvery limits how often a peer is told that a service stays native.
	nativeEvery = time.Second
	// flowCheck is how often to check that what a peer sends can still be delivered.
	flowCheck = time.Second
	// lostChecks is the number of consecutive checks without a route that ends the flow.
	lostChecks = 3
)

// The states of a flow that operators see, named like those of a connection.
const (
	stateCarrying = "carrying"
	stateClosed   = "closed"
	stateNative   = "native"
)

// flow is a pair of ends between which datagrams are carried. It is owned by the shard; the
// counters are read by others.
type flow struct {
	id    uint64
	tuple ebpf.Tuple
	peer  *peer
	side  report.Side
	start time.Time

	prev, next *flow // in the list of the peer
	seen       time.Time
	declined   negotiate.Reason // why the peer is told not to send to it
	toldAt     time.Time
	rule       int       // of the policy, or ebpf.NoRule
	checked    time.Time // when it was checked that the programs know the tuple
	lost       int       // consecutive checks without a route

	carrier report.Carrier // at the start of the flow
	tx, rx  atomic.Uint64  // bytes from and to the local application
}

// flowList is a list of flows, ordered by their last datagrams, oldest first.
type flowList struct {
	head, tail *flow
	n          int
}

func (l *flowList) push(f *flow) {
	f.prev, f.next = l.tail, nil
	if l.tail == nil {
		l.head = f
	} else {
		l.tail.next = f
	}
	l.tail = f
	l.n++
}

func (l *flowList) remove(f *flow) {
	if f.prev == nil {
		l.head = f.next
	} else {
		f.prev.next = f.next
	}
	if f.next == nil {
		l.tail = f.prev
	} else {
		f.next.prev = f.prev
	}
	f.prev, f.next = nil, nil
	l.n--
}

// touch records a datagram of a flow.
func (e *engine) touch(f *flow) {
	f.seen = e.now
	if list := &f.peer.flows; list.tail != f {
		list.remove(f)
		list.push(f)
	}
}

// newFlow adds a flow. If the peer's share or the limit is reached, the flow that has been
// quiet longest makes room; it starts again with its next datagram.
func (e *engine) newFlow(l *link, t ebpf.Tuple, side report.Side) *flow {
	p := l.peer
	limit := e.gateway.MaxFlows()
	if p.flows.n >= max(1, limit/peerShare) {
		e.endFlow(p.flows.head, report.EndClosed, negotiate.ReasonFlowLimit)
	} else if e.flows.len() >= limit {
		e.endFlow(e.quietest(), report.EndClosed, negotiate.ReasonFlowLimit)
	}
	f := &flow{id: e.gateway.NextID(), tuple: t, peer: p, side: side, start: e.now, seen: e.now, rule: ebpf.NoRule, checked: e.now, carrier: l.carrier()}
	p.flows.push(f)
	e.flows.add(f)
	return f
}

// quietest returns the flow with the oldest last datagram. There must be at least one.
func (e *engine) quietest() (oldest *flow) {
	for _, p := range e.peers {
		if h := p.flows.head; h != nil && (oldest == nil || h.seen.Before(oldest.seen)) {
			oldest = h
		}
	}
	return oldest
}

// endFlow removes a flow from the table. The programs decide about its tuple again.
func (e *engine) endFlow(f *flow, end report.End, r negotiate.Reason) {
	p := f.peer
	p.flows.remove(f)
	e.flows.remove(f)
	info := f.info(e.now)
	info.End, info.EndedAt = end, time.Now()
	info.State = stateClosed
	if end == report.EndNative {
		info.State = stateNative
	}
	if r != negotiate.ReasonNone {
		info.Reason, info.DecidedBy = r.String(), report.DecidedLocal
	}
	e.gateway.Ended(info)
	var left time.Duration
	if end == report.EndNative { // datagrams already steered can still go back to the network
		left = nativeEvery
	}
	if err := e.steer.CloseDatagram(f.tuple, uint8(r), left); err != nil {
		e.log.Debug("close datagram tuple", "tuple", f.tuple, "error", err)
	}
}

// info describes the flow for operators.
func (f *flow) info(now time.Time) report.ConnInfo {
	return report.ConnInfo{
		ID: f.id, Proto: string(report.ProtoUDP), Side: f.side, Local: f.tuple.Local, Remote: f.tuple.Remote,
		State: stateCarrying, Carrier: f.carrier,
		TxBytes: f.tx.Load(), RxBytes: f.rx.Load(), AgeSeconds: now.Sub(f.start).Seconds(),
	}
}

// expireFlows ends flows that have been quiet too long.
func (e *engine) expireFlows(p *peer) {
	for f := p.flows.head; f != nil; {
		next := f.next
		quiet := e.now.Sub(f.seen)
		switch {
		case quiet >= flowIdle:
			e.endFlow(f, report.EndClosed, negotiate.ReasonNone)
		case f.declined != negotiate.ReasonNone && quiet >= declinedIdle:
			e.endFlow(f, report.EndNative, f.declined)
		case quiet < declinedIdle:
			return // the rest are more recent
		}
		f = next
	}
}

// flowTable holds the flows of an engine. Only the shard changes it, under mu, and only the
// shard reads it without mu; other goroutines read it under mu.
type flowTable struct {
	mu    sync.Mutex
	flows map[ebpf.Tuple]*flow
	count map[report.Carrier]report.FlowCount
}

// find returns the flow of a tuple, or nil.
func (t *flowTable) find(of ebpf.Tuple) *flow { return t.flows[of] }

func (t *flowTable) len() int { return len(t.flows) }

func (t *flowTable) add(f *flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flows == nil {
		t.flows, t.count = map[ebpf.Tuple]*flow{}, map[report.Carrier]report.FlowCount{}
	}
	t.flows[f.tuple] = f
	n := t.count[f.carrier]
	n.Now++
	n.Total++
	t.count[f.carrier] = n
}

func (t *flowTable) remove(f *flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flows[f.tuple] != f {
		return
	}
	delete(t.flows, f.tuple)
	n := t.count[f.carrier]
	n.Now--
	t.count[f.carrier] = n
}

// infos describes all flows.
func (t *flowTable) infos(now time.Time) []report.ConnInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]report.ConnInfo, 0, len(t.flows))
	for _, f := range t.flows {
		list = append(list, f.info(now))
	}
	return list
}

// countPeers adds the flows of each peer.
func (t *flowTable) countPeers(to map[netip.Addr]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tuple := range t.flows {
		to[tuple.Remote.Addr()]++
	}
}

// snapshot copies the numbers of flows by carrier.
func (t *flowTable) snapshot(to map[report.Carrier]report.FlowCount) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(to, t.count)
}

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
