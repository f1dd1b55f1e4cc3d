package gateway

import (
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

const (
	// dgramIdle is how long a flow without datagrams is kept; dgramDeclinedIdle
	// is that of one the policy does not want.
	dgramIdle         = 60 * time.Second
	dgramDeclinedIdle = time.Second
	// dgramPeerShare is the part of all flows that one peer may have.
	dgramPeerShare = 4
	// nativeEvery is how often a peer is told that a service stays native.
	nativeEvery = time.Second
	// flowCheck is how often it is made sure that what a peer sends still gets in.
	flowCheck = time.Second
)

// dgramFlow is a pair of ends between which datagrams are carried. The shard has
// it; the counters are read by others.
type dgramFlow struct {
	id    uint64
	tuple ebpf.Tuple
	peer  *dgramPeer
	side  config.Side
	start time.Time

	prev, next *dgramFlow // in the list of the peer
	seen       time.Time
	declined   negotiate.Reason // why the peer is told not to carry to it
	toldAt     time.Time
	rule       int       // of the policy, or ebpf.NoRule
	checked    time.Time // that the programs still know the tuple

	carrier config.Carrier // when it began
	tx, rx  atomic.Uint64  // bytes from and to the local application
}

// dgramList is a list of flows, the one with the oldest last datagram first.
type dgramList struct {
	head, tail *dgramFlow
	n          int
}

func (l *dgramList) push(f *dgramFlow) {
	f.prev, f.next = l.tail, nil
	if l.tail == nil {
		l.head = f
	} else {
		l.tail.next = f
	}
	l.tail = f
	l.n++
}

func (l *dgramList) remove(f *dgramFlow) {
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

// touch notes a datagram of a flow.
func (e *dgramEngine) touch(f *dgramFlow) {
	f.seen = e.now
	if list := &f.peer.flows; list.tail != f {
		list.remove(f)
		list.push(f)
	}
}

// newFlow enters a flow. Beyond the share of its peer, and beyond the limit, the
// one that has been quiet for longest makes room: it begins anew when it speaks.
func (e *dgramEngine) newFlow(l *dgramLink, t ebpf.Tuple, side config.Side) *dgramFlow {
	p := l.peer
	limit := e.g.live.Load().Limits.MaxFlows
	if p.flows.n >= max(1, limit/dgramPeerShare) {
		e.endFlow(p.flows.head, admin.EndClosed, negotiate.ReasonFlowLimit)
	} else if len(e.flows) >= limit {
		e.endFlow(e.quietest(), admin.EndClosed, negotiate.ReasonFlowLimit)
	}
	e.g.mu.Lock()
	e.g.nextID++
	id := e.g.nextID
	e.g.mu.Unlock()
	f := &dgramFlow{id: id, tuple: t, peer: p, side: side, start: e.now, seen: e.now, rule: ebpf.NoRule, checked: e.now, carrier: l.carrier()}
	p.flows.push(f)
	e.mu.Lock()
	e.flows[t] = f
	e.mu.Unlock()
	e.count.flowBegun(f.carrier)
	return f
}

// quietest returns the flow whose last datagram is oldest; there is one.
func (e *dgramEngine) quietest() (oldest *dgramFlow) {
	for _, p := range e.peers {
		if h := p.flows.head; h != nil && (oldest == nil || h.seen.Before(oldest.seen)) {
			oldest = h
		}
	}
	return oldest
}

// endFlow takes a flow out of the table. The programs decide about its tuple
// anew.
func (e *dgramEngine) endFlow(f *dgramFlow, end admin.End, r negotiate.Reason) {
	p := f.peer
	p.flows.remove(f)
	e.mu.Lock()
	delete(e.flows, f.tuple)
	e.mu.Unlock()
	e.count.flowEnded(f.carrier)
	info := f.info(e.now)
	info.End, info.EndedAt = end, time.Now()
	info.State = life.Closed.String()
	if end == admin.EndNative {
		info.State = life.Native.String()
	}
	if r != negotiate.ReasonNone {
		info.Reason, info.DecidedBy = r.String(), admin.DecidedLocal
	}
	e.g.udp.closed.Add(info)
	var left time.Duration
	if end == admin.EndNative { // what has been steered already can be given back
		left = nativeEvery
	}
	if err := e.steer.CloseDatagram(f.tuple, uint8(r), left); err != nil {
		e.log.Debug("close datagram tuple", "tuple", f.tuple, "error", err)
	}
}

// info describes the flow for an operator.
func (f *dgramFlow) info(now time.Time) admin.ConnInfo {
	return admin.ConnInfo{
		ID: f.id, Proto: string(config.ProtoUDP), Side: f.side, Local: f.tuple.Local, Remote: f.tuple.Remote,
		State: life.Carrying.String(), Carrier: f.carrier,
		TxBytes: f.tx.Load(), RxBytes: f.rx.Load(), AgeSeconds: now.Sub(f.start).Seconds(),
	}
}

// expireFlows closes what has been quiet for too long.
func (e *dgramEngine) expireFlows(p *dgramPeer) {
	for f := p.flows.head; f != nil; {
		next := f.next
		quiet := e.now.Sub(f.seen)
		switch {
		case quiet >= dgramIdle:
			e.endFlow(f, admin.EndClosed, negotiate.ReasonNone)
		case f.declined != negotiate.ReasonNone && quiet >= dgramDeclinedIdle:
			e.endFlow(f, admin.EndNative, f.declined)
		case quiet < dgramDeclinedIdle:
			return // the rest is younger
		}
		f = next
	}
}

// infos describes all flows; any goroutine.
func (e *dgramEngine) infos() []admin.ConnInfo {
	if e == nil {
		return nil
	}
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]admin.ConnInfo, 0, len(e.flows))
	for _, f := range e.flows {
		list = append(list, f.info(now))
	}
	return list
}

// eachFlow calls fn, which must not block, for every flow; any goroutine.
func (e *dgramEngine) eachFlow(fn func(f *dgramFlow)) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.flows {
		fn(f)
	}
}
