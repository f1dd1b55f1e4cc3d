package peers

import (
	"net/netip"
	"sync"
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

// Shares counts what each peer holds of what peers could take from others. A peer
// is the address that a connection has proved: what a gateway calls itself, it can
// change. Connections that applications of this host begin are theirs, and count
// for nobody. Safe for concurrent use; innermost lock.
type Shares struct {
	mu                sync.Mutex // guards everything below
	flows, handshakes int
	perSecond         rate.Limit
	burst             int

	peers   map[netip.Addr]*peerUse
	refused map[Resource]uint64
	waiting atomic.Int64 // handshakes of all peers; written under mu
	swept   time.Time
}

// peerUse is what a peer holds.
type peerUse struct {
	flows, handshakes int
	limiter           *rate.Limiter // nil: it has not come in a hurry
	seen              time.Time
}

// shareSweep is how often peers are forgotten that hold nothing.
const shareSweep = time.Second

// NewShares returns the shares of those limits.
func NewShares(l config.Limits) *Shares {
	s := &Shares{peers: map[netip.Addr]*peerUse{}, refused: map[Resource]uint64{}}
	s.Configure(l)
	return s
}

// Configure takes over the limits.
func (s *Shares) Configure(l config.Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flows, s.handshakes = l.PeerShare.Of(l.MaxFlows), l.PeerShare.Of(HandshakeLimit)
	s.burst = l.PeerShare.Of(l.NewFlowsPerSecond)
	s.perSecond = rate.Limit(s.burst)
	for _, p := range s.peers {
		p.limiter = nil
	}
}

// Begin enters a connection of a peer, which is in handshake.
func (s *Shares) begin(a netip.Addr, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[a]
	if p == nil {
		s.sweepLocked(now)
		p = &peerUse{}
		s.peers[a] = p
	}
	p.flows++
	p.handshakes++
	s.waiting.Add(1)
	p.seen = now
}

// sweepLocked forgets who has been gone for long enough to have its rate again.
func (s *Shares) sweepLocked(now time.Time) {
	if now.Sub(s.swept) < shareSweep {
		return
	}
	s.swept = now
	for a, p := range s.peers {
		if p.flows+p.handshakes == 0 && now.Sub(p.seen) > shareSweep {
			delete(s.peers, a)
		}
	}
}

// give takes from what a peer holds.
func (s *Shares) give(a netip.Addr, flows, handshakes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[a]
	p.flows -= flows
	p.handshakes -= handshakes
	s.waiting.Add(-int64(handshakes))
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
func (c *Share) Begin(s *Shares, a netip.Addr, now time.Time) {
	s.begin(a, now)
	c.held.Store(shareHandshake)
}

// Carried says that it is not in handshake any more.
func (c *Share) Carried(s *Shares, a netip.Addr) {
	if c.held.CompareAndSwap(shareHandshake, shareFlow) {
		s.give(a, 0, 1)
	}
}

// End says that the flow has left the table.
func (c *Share) End(s *Shares, a netip.Addr) {
	switch c.held.Swap(shareNone) {
	case shareHandshake:
		s.give(a, 1, 1)
	case shareFlow:
		s.give(a, 1, 0)
	}
}

// Admit decides about a connection that was begun. The rate is shared only when
// scarce says that others would have to do with less.
func (s *Shares) Admit(a netip.Addr, scarce bool, now time.Time) negotiate.Reason {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[a]
	switch {
	case p == nil:
	case p.flows > s.flows:
		return s.refuseLocked(ResourceFlows)
	case p.handshakes > s.handshakes:
		return s.refuseLocked(ResourceHandshakes)
	case scarce:
		if p.limiter == nil {
			p.limiter = rate.NewLimiter(s.perSecond, s.burst)
		}
		if !p.limiter.AllowN(now, 1) {
			return s.refuseLocked(ResourceRate)
		}
	}
	return negotiate.ReasonNone
}

func (s *Shares) refuseLocked(r Resource) negotiate.Reason {
	s.refused[r]++
	return r.reason()
}

// Refuse counts what somebody else refused.
func (s *Shares) Refuse(r Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuseLocked(r)
}

// Holds is what a peer holds: connections that it has begun, and those of them
// that are in handshake.
type Holds struct{ Flows, Handshakes int }

// Use returns what the peers hold that hold anything.
func (s *Shares) Use() map[netip.Addr]Holds {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[netip.Addr]Holds, len(s.peers))
	for a, p := range s.peers {
		if p.flows > 0 {
			all[a] = Holds{p.flows, p.handshakes}
		}
	}
	return all
}

// Refusals returns how often each resource was refused.
func (s *Shares) Refusals() map[Resource]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[Resource]uint64{}
	for _, r := range resources() {
		all[r] = s.refused[r]
	}
	return all
}

// PerPeer is how many connections a second one address may begin when they are scarce.
func (s *Shares) PerPeer() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.burst
}

// InHandshake counts the handshakes of all peers.
func (s *Shares) InHandshake() int64 { return s.waiting.Load() }
