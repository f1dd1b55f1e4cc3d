package peers

import (
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// HandshakeLimit bounds the connections of peers that have proved their address but are not carried yet. Each peer has
// a share of it.
const HandshakeLimit = 4096

const (
	// declineLimit bounds the connections that lack room and wait until their client is told. They take up no room that
	// others want.
	declineLimit = 512
	// declinesOfOne bounds those of one address.
	declinesOfOne = 64
)

// Resource is something bounded that peers compete for. One address gets at most limits.peer_share of it.
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

// reason returns why a connection is native that would need more of the resource.
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

// Configure applies the limits.
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

// Share is what a connection counts for against its peer: nothing, flow and handshake, flow, or declined. Connections
// that applications of this host begin count for no peer.
//
//	none ─ begin ─► handshake ─ carried ─► flow
//	  ▲               │  └─ decline ─► declined
//	  └───── end ─────┴─────────┴────────────┘
type Share struct {
	table *Table     // nil: counts for no peer
	peer  netip.Addr // against which it counts
	held  holding    // guarded by the table's lock, like the sums of the peer
}

type holding uint8

const (
	holdsNothing holding = iota
	holdsHandshake
	holdsFlow
	holdsDecline
)

// counts is what a connection adds to what its peer holds.
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

// Begin counts a flow that the peer has begun. Call it once, before others know of the flow.
func (c *Share) Begin(t *Table, a netip.Addr, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.peerLocked(a, now).seen = now
	c.table, c.peer = t, a
	c.setLocked(holdsHandshake)
}

// Carried marks the flow as no longer in handshake.
func (c *Share) Carried() {
	c.change(func() {
		if c.held == holdsHandshake {
			c.setLocked(holdsFlow)
		}
	})
}

// decline marks the flow as declined: it takes up no room from now on. It returns false if too many flows are declined;
// then the flow counts for nothing.
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

// End removes the flow from what the peer holds. It may be called again.
func (c *Share) End() {
	c.change(func() { c.setLocked(holdsNothing) })
}

// change runs fn under the table's lock, unless the connection counts for nothing.
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

// Admit decides about a connection that a peer has begun. The rate is divided among peers only if scarce says that
// others would get less.
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

// Refuse counts a refusal by another part of the gateway.
func (t *Table) Refuse(r Resource) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refuseLocked(r)
}

// Holds is what a peer holds: connections that it has begun, those of them in handshake, and, not among them, those
// that are declined.
type Holds struct{ Flows, Handshakes, Declines int }

// Use returns what each peer with connections holds.
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

// perPeer returns how many connections one address may begin at once, and per second, when they are scarce.
func (t *Table) perPeer() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.share.burst
}

// declined returns the number of declined connections of all peers.
func (t *Table) declined() int { return int(t.declines.Load()) }

// inHandshake returns the number of handshakes of all peers.
func (t *Table) inHandshake() int64 { return t.waiting.Load() }
