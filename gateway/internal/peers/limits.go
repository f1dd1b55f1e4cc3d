package peers

import (
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Limits are those on connections.
type Limits struct {
	Max   func() int // flows, by the configuration in force
	Flows func() int // that there are
	Rate  *rate.Limiter
	Peers *Table
	Note  func() // is called when there may be room again
}

// MaxFlows is how many flows the gateway may have now.
func (l *Limits) MaxFlows() int { return FlowsWithin(l.Max()) }

// flows is how many flows take room. Those that are declined do not.
func (l *Limits) flows() int { return l.Flows() - l.Peers.declined() }

// Lacking is why there is no room for another connection of a peer.
func (l *Limits) Lacking() negotiate.Reason {
	switch {
	case l.flows() >= l.MaxFlows():
		return negotiate.ReasonFlowLimit
	case l.Peers.inHandshake() >= HandshakeLimit:
		return negotiate.ReasonRateLimit
	default:
		return negotiate.ReasonNone
	}
}

// Admit decides whether there is room for a flow that is in the table; at the server's
// side its peer has begun it, and share is what it counts for. A flow that there is none
// for (shed says why) takes none from here on; declines says whether it can wait until its
// client is told so. A client's flow does not wait: it counts until its end, which comes now.
func (l *Limits) Admit(side report.Side, peer netip.Addr, share *Share) (shed negotiate.Reason, declines bool) {
	if shed = l.lacks(side, peer); shed == negotiate.ReasonNone {
		return shed, true
	}
	declines = share.decline()
	l.Note()
	return shed, declines
}

// lacks is why there is no room for a flow that is in the table.
func (l *Limits) lacks(side report.Side, peer netip.Addr) negotiate.Reason {
	if l.flows() > l.MaxFlows() {
		return negotiate.ReasonFlowLimit
	}
	if side == report.SideServer {
		now := time.Now()
		scarce := l.Rate.TokensAt(now) < float64(l.Rate.Burst()-l.Peers.perPeer())
		if r := l.Peers.Admit(peer, scarce, now); r != negotiate.ReasonNone {
			return r
		}
	}
	if !l.Rate.Allow() {
		return negotiate.ReasonRateLimit
	}
	return negotiate.ReasonNone
}
