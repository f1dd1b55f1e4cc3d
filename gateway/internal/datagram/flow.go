package datagram

import (
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
