package peers

import (
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// HandshakeLimit bounds the connections of peers that have proved their address and
// are not carried yet, and is what a peer has its share of until then.
const HandshakeLimit = 4096

const (
	// declineLimit bounds the connections that there was no room for and that wait for
	// what is said to them. They take no room that others want.
	declineLimit = 512
	// declinesOfOne bounds those of one address.
	declinesOfOne = 64
)

// Resource is something bounded that peers take from each other, of which one
// address gets no more than limits.peer_share.
type Resource string

// The resources.
const (
	ResourceFlows      Resource = "flows"      // limits.max_flows: connections that the peer has begun
	ResourceHandshakes Resource = "handshakes" // those of them that are not carried yet
	ResourceRate       Resource = "rate"       // limits.new_flows_per_second, once others may want it
	ResourceMemory     Resource = "memory"     // limits.memory
	ResourceShmPeers   Resource = "shm_peers"  // peers of the shm device
)

// Resources lists every Resource.
func Resources() []Resource {
	return []Resource{ResourceFlows, ResourceHandshakes, ResourceRate, ResourceMemory, ResourceShmPeers}
}

// reason is why a connection is native that would need more of it.
func (r Resource) reason() negotiate.Reason {
	switch r {
	case ResourceFlows:
		return negotiate.ReasonFlowLimit
	case ResourceMemory, ResourceShmPeers:
		return negotiate.ReasonNoMemory
	default:
		return negotiate.ReasonRateLimit
	}
}

// share is what one address may have of each resource.
type share struct {
	flows, handshakes int
	perSecond         rate.Limit
	burst             int
}

// Configure takes over the limits.
func (t *Table) Configure(l config.Limits) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.share = share{
		flows: l.PeerShare.Of(l.MaxFlows), handshakes: l.PeerShare.Of(HandshakeLimit),
		burst: l.PeerShare.Of(l.NewFlowsPerSecond),
	}
	t.share.perSecond = rate.Limit(t.share.burst)
	for _, p := range t.peers {
		p.limiter = nil
	}
}

// Share is what a connection counts for: nothing, flow and handshake, flow, or one that is
// declined. Connections that applications of this host begin are theirs, and count for no
// peer.
//
//	none ─ begin ─► handshake ─ carried ─► flow
//	  ▲               │  └─ decline ─► declined
//	  └───── end ─────┴─────────┴────────────┘
type Share struct {
	table *Table     // nil: it counts for no peer
	peer  netip.Addr // whose share it is part of
	held  holding    // guarded by the lock of the table, together with what the peer holds
}

type holding uint8

const (
	holdsNothing holding = iota
	holdsHandshake
	holdsFlow
	holdsDecline
)

// counts is what a peer holds by one connection.
var counts = [...]Holds{
	holdsNothing: {}, holdsHandshake: {Flows: 1, Handshakes: 1}, holdsFlow: {Flows: 1}, holdsDecline: {Declines: 1},
}

// setLocked changes what the connection counts for.
func (c *Share) setLocked(to holding) {
	t, p := c.table, c.table.peers[c.peer]
	was, is, before := counts[c.held], counts[to], p.holds
	c.held = to
	p.holds.Flows += is.Flows - was.Flows
	p.holds.Handshakes += is.Handshakes - was.Handshakes
	p.holds.Declines += is.Declines - was.Declines
	t.waiting.Add(int64(is.Handshakes - was.Handshakes))
	t.declines.Add(int64(is.Declines - was.Declines))
	switch nothing := (Holds{}); {
	case before == nothing && p.holds != nothing:
		t.holding++
	case before != nothing && p.holds == nothing:
		t.holding--
	}
}

// Begin counts a flow that the peer has begun, once, before others know of it.
func (c *Share) Begin(t *Table, a netip.Addr, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peerLocked(a, now).seen = now
	c.table, c.peer = t, a
	c.setLocked(holdsHandshake)
}

// Carried says that it is not in handshake any more.
func (c *Share) Carried() {
	c.change(func() {
		if c.held == holdsHandshake {
			c.setLocked(holdsFlow)
		}
	})
}

// decline says that there is no room for the flow, which takes none from here on. It
// reports false where there are too many like it: then the flow counts for nothing.
func (c *Share) decline() (fits bool) {
	fits = true
	c.change(func() {
		if fits = c.table.declines.Load() < declineLimit && c.table.peers[c.peer].holds.Declines < declinesOfOne; fits {
			c.setLocked(holdsDecline)
		} else {
			c.setLocked(holdsNothing)
		}
	})
	return fits
}

// End says that the flow has left the table, once or more.
func (c *Share) End() {
	c.change(func() { c.setLocked(holdsNothing) })
}

// change runs fn under the lock of the table, unless the connection counts for nothing.
func (c *Share) change(fn func()) {
	if c.table == nil {
		return
	}
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	if c.held != holdsNothing {
		fn()
	}
}

// Admit decides about a connection that was begun. The rate is shared only when
// scarce says that others would have to do with less.
func (t *Table) Admit(a netip.Addr, scarce bool, now time.Time) negotiate.Reason {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[a]
	switch {
	case p == nil:
	case p.holds.Flows > t.share.flows:
		return t.refuseLocked(ResourceFlows)
	case p.holds.Handshakes > t.share.handshakes:
		return t.refuseLocked(ResourceHandshakes)
	case scarce:
		if p.limiter == nil {
			p.limiter = rate.NewLimiter(t.share.perSecond, t.share.burst)
		}
		if !p.limiter.AllowN(now, 1) {
			return t.refuseLocked(ResourceRate)
		}
	}
	return negotiate.ReasonNone
}

func (t *Table) refuseLocked(r Resource) negotiate.Reason {
	t.refused[r]++
	return r.reason()
}

// Refuse counts what another part of the gateway refused.
func (t *Table) Refuse(r Resource) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refuseLocked(r)
}

// Holds is what a peer holds: connections that it has begun, those of them that are in
// handshake, and beside them those that are declined.
type Holds struct{ Flows, Handshakes, Declines int }

// Use returns what the peers hold that have connections.
func (t *Table) Use() map[netip.Addr]Holds {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[netip.Addr]Holds, len(t.peers))
	for a, p := range t.peers {
		if p.holds.Flows > 0 {
			all[a] = p.holds
		}
	}
	return all
}

// Refusals returns how often each resource was refused.
func (t *Table) Refusals() map[Resource]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[Resource]uint64{}
	for _, r := range Resources() {
		all[r] = t.refused[r]
	}
	return all
}

// perPeer is how many connections a second one address may begin when they are scarce.
func (t *Table) perPeer() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.share.burst
}

// declined counts the connections of all peers that are declined.
func (t *Table) declined() int { return int(t.declines.Load()) }

// inHandshake counts the handshakes of all peers.
func (t *Table) inHandshake() int64 { return t.waiting.Load() }
