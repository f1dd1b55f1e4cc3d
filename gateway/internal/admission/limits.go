package admission

import (
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/negotiate"
)

// Limits are those on connections.
type Limits struct {
	Max   func() int // flows, by the configuration in force
	Flows func() int // that there are
	Rate  *rate.Limiter
	Peers *peers.Table
}

// MaxFlows is how many flows the gateway may have now.
func (l *Limits) MaxFlows() int { return flowsWithin(l.Max()) }

// Lacking is why there is no room for another connection of a peer.
func (l *Limits) Lacking() negotiate.Reason {
	switch {
	case l.Flows() >= l.MaxFlows():
		return negotiate.ReasonFlowLimit
	case l.Peers.InHandshake() >= peers.HandshakeLimit:
		return negotiate.ReasonRateLimit
	default:
		return negotiate.ReasonNone
	}
}

// Admit decides whether there is room for a flow that is in the table; at the server's
// side its peer has begun it.
func (l *Limits) Admit(side config.Side, peer netip.Addr) negotiate.Reason {
	if l.Flows() > l.MaxFlows() {
		return negotiate.ReasonFlowLimit
	}
	if side == config.SideServer {
		now := time.Now()
		scarce := l.Rate.TokensAt(now) < float64(l.Rate.Burst()-l.Peers.PerPeer())
		if r := l.Peers.Admit(peer, scarce, now); r != negotiate.ReasonNone {
			return r
		}
	}
	if !l.Rate.Allow() {
		return negotiate.ReasonRateLimit
	}
	return negotiate.ReasonNone
}
