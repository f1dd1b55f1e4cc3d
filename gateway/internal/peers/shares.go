package peers

import (
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// HandshakeLimit bounds the connections of peers that have proved their address and
// are not carried yet, and is what a peer has its share of until then.
const HandshakeLimit = 4096

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

// resources lists every Resource.
func resources() []Resource {
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

// begin enters a connection of a peer, which is in handshake. Connections that
// applications of this host begin are theirs, and count for no peer.
func (t *Table) begin(a netip.Addr, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peerLocked(a, now)
	if p.flows == 0 {
		t.holding++
	}
	p.flows++
	p.handshakes++
	t.waiting.Add(1)
	p.seen = now
}

// give takes from what a peer holds.
func (t *Table) give(a netip.Addr, flows, handshakes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[a]
	p.flows -= flows
	p.handshakes -= handshakes
	if flows > 0 && p.flows == 0 {
		t.holding--
	}
	t.waiting.Add(-int64(handshakes))
}

// Share is what a connection counts for: nothing, flow and handshake, flow.
//
//	none ─ begin ─► handshake ─ carried ─► flow
//	  ▲                 └────── end ────────┘│
//	  └──────────────────────────────────────┘
type Share struct{ held atomic.Uint32 }

const (
	shareNone uint32 = iota
	shareHandshake
	shareFlow
)

// Begin counts a flow that the peer has begun, once.
func (c *Share) Begin(t *Table, a netip.Addr, now time.Time) {
	t.begin(a, now)
	c.held.Store(shareHandshake)
}

// Carried says that it is not in handshake any more.
func (c *Share) Carried(t *Table, a netip.Addr) {
	if c.held.CompareAndSwap(shareHandshake, shareFlow) {
		t.give(a, 0, 1)
	}
}

// End says that the flow has left the table.
func (c *Share) End(t *Table, a netip.Addr) {
	switch c.held.Swap(shareNone) {
	case shareHandshake:
		t.give(a, 1, 1)
	case shareFlow:
		t.give(a, 1, 0)
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
	case p.flows > t.share.flows:
		return t.refuseLocked(ResourceFlows)
	case p.handshakes > t.share.handshakes:
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

// Holds is what a peer holds: connections that it has begun, and those of them
// that are in handshake.
type Holds struct{ Flows, Handshakes int }

// Use returns what the peers hold that hold anything.
func (t *Table) Use() map[netip.Addr]Holds {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[netip.Addr]Holds, len(t.peers))
	for a, p := range t.peers {
		if p.flows > 0 {
			all[a] = Holds{p.flows, p.handshakes}
		}
	}
	return all
}

// Refusals returns how often each resource was refused.
func (t *Table) Refusals() map[Resource]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[Resource]uint64{}
	for _, r := range resources() {
		all[r] = t.refused[r]
	}
	return all
}

// PerPeer is how many connections a second one address may begin when they are scarce.
func (t *Table) PerPeer() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.share.burst
}

// InHandshake counts the handshakes of all peers.
func (t *Table) InHandshake() int64 { return t.waiting.Load() }
