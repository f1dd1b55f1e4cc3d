package gateway

import (
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/negotiate"
)

// room tells the programs whether peers may begin connections. An offer they leave to the
// kernel costs its client nothing, while one for which there is no room behind its
// proof has to be declined.
type room struct {
	now atomic.Uint32 // negotiate.Reason: why they may not, as the programs know it
	mu  sync.Mutex    // held while that changes
}

// noteRoom is due when flows have come or gone. The caller holds no lock.
func (g *gateway) noteRoom() {
	if uint32(g.lacking()) == g.room.now.Load() {
		return
	}
	g.room.mu.Lock()
	defer g.room.mu.Unlock()
	r := g.lacking()
	if uint32(r) == g.room.now.Load() {
		return
	}
	if err := g.steer.Shed(uint8(r)); err != nil {
		g.log.Debug("room for connections of peers", "error", err)
		return
	}
	g.room.now.Store(uint32(r))
}

// lacking is why there is no room for another connection of a peer.
func (g *gateway) lacking() negotiate.Reason {
	g.mu.Lock()
	n := len(g.flows)
	g.mu.Unlock()
	switch {
	case n >= g.flowLimit():
		return negotiate.ReasonFlowLimit
	case g.peers.InHandshake() >= peers.HandshakeLimit:
		return negotiate.ReasonRateLimit
	default:
		return negotiate.ReasonNone
	}
}

// flowLimit is how many flows the gateway may have now: each needs a descriptor
// for its app leg, and one that turns out to be missing when the application has
// been connected is an error of that connection.
func (g *gateway) flowLimit() int {
	return max(0, min(g.live.Load().Limits.MaxFlows, process.LegRoom()))
}
