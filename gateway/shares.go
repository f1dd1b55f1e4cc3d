package gateway

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// handshakeLimit bounds the connections of peers that have proved their address and
// are not carried yet, and is what a peer has its share of until then.
const handshakeLimit = 4096

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

// shares counts what each peer holds of what peers could take from others. A peer
// is the address that a connection has proved: what a gateway calls itself, it can
// change. Connections that applications of this host begin are theirs, and count
// for nobody. Safe for concurrent use; innermost lock.
type shares struct {
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

func newShares(l config.Limits) *shares {
	s := &shares{peers: map[netip.Addr]*peerUse{}, refused: map[Resource]uint64{}}
	s.configure(l)
	return s
}

// configure takes over the limits.
func (s *shares) configure(l config.Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flows, s.handshakes = l.PeerShare.Of(l.MaxFlows), l.PeerShare.Of(handshakeLimit)
	s.burst = l.PeerShare.Of(l.NewFlowsPerSecond)
	s.perSecond = rate.Limit(s.burst)
	for _, p := range s.peers {
		p.limiter = nil
	}
}

// begin enters a connection of a peer, which is in handshake.
func (s *shares) begin(a netip.Addr, now time.Time) {
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
func (s *shares) sweepLocked(now time.Time) {
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
func (s *shares) give(a netip.Addr, flows, handshakes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[a]
	p.flows -= flows
	p.handshakes -= handshakes
	s.waiting.Add(-int64(handshakes))
}

// shareState is what a connection counts for: nothing, flow and handshake, flow.
//
//	none ─ begin ─► handshake ─ carried ─► flow
//	  ▲                 └────── end ────────┘│
//	  └──────────────────────────────────────┘
type shareState struct{ held atomic.Uint32 }

const (
	shareNone uint32 = iota
	shareHandshake
	shareFlow
)

// begin counts a flow that its peer has begun, once.
func (c *shareState) begin(f *flow) {
	if f.side == config.SideServer {
		f.g.shares.begin(f.peer(), f.start)
		c.held.Store(shareHandshake)
	}
}

// carried says that it is not in handshake any more.
func (c *shareState) carried(f *flow) {
	if c.held.CompareAndSwap(shareHandshake, shareFlow) {
		f.g.shares.give(f.peer(), 0, 1)
	}
}

// end says that the flow has left the table.
func (c *shareState) end(f *flow) {
	switch c.held.Swap(shareNone) {
	case shareHandshake:
		f.g.shares.give(f.peer(), 1, 1)
	case shareFlow:
		f.g.shares.give(f.peer(), 1, 0)
	}
}

// peer is whose share the flow counts for.
func (f *flow) peer() netip.Addr { return f.tuple.Remote.Addr().Unmap() }

// admit decides about a connection that was begun. The rate is shared only when
// scarce says that others would have to do with less.
func (s *shares) admit(a netip.Addr, scarce bool, now time.Time) negotiate.Reason {
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

func (s *shares) refuseLocked(r Resource) negotiate.Reason {
	s.refused[r]++
	return r.reason()
}

// refuse counts what somebody else refused.
func (s *shares) refuse(r Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuseLocked(r)
}

// use returns what the peers hold that hold anything.
func (s *shares) use() map[netip.Addr]admin.PeerUse {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[netip.Addr]admin.PeerUse, len(s.peers))
	for a, p := range s.peers {
		if p.flows > 0 {
			all[a] = admin.PeerUse{Begun: p.flows, Handshakes: p.handshakes}
		}
	}
	return all
}

// peerUse returns what each address holds.
func (g *gateway) peerUse() map[netip.Addr]admin.PeerUse {
	all := g.shares.use()
	for owner, st := range g.pool.Owners() {
		if a, ok := owner.(netip.Addr); ok {
			u := all[a]
			u.MemoryBytes = uint64(st.Reserved)
			all[a] = u
		}
	}
	for _, fb := range g.fabrics {
		if sf, ok := fb.(*shmFabric); ok {
			sf.countPeers(all)
		}
	}
	return all
}

// sharesRefused returns how often an address wanted more than its share.
func (g *gateway) sharesRefused() map[string]uint64 {
	s := g.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]uint64{string(ResourceMemory): g.pool.Stats().RefusedQuota}
	for _, r := range Resources() {
		all[string(r)] += s.refused[r]
	}
	return all
}
