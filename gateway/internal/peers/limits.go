package peers

import (
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// Limits bounds the connections of a gateway.
type Limits struct {
	Max   func() int // most flows, by the configuration in force
	Flows func() int // current flows
	Rate  *rate.Limiter
	Peers *Table
	Note  func() // called when there may be room again
}

// MaxFlows returns how many flows the gateway may have now.
func (l *Limits) MaxFlows() int { return FlowsWithin(l.Max()) }

// flows returns how many flows take up room. Declined ones do not.
func (l *Limits) flows() int { return l.Flows() - l.Peers.declined() }

// Lacking returns why there is no room for another connection of a peer; ReasonNone if there is.
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

// Admit decides whether there is room for a flow that is already in the table. If there is not, shed says why, and the
// flow takes up no room from now on; declines reports whether the flow may stay until its client has been told. share
// is what it counts for if its peer has begun it, at the server's side. A client's flow does not wait: it counts until
// its end, which comes now.
func (l *Limits) Admit(side report.Side, peer netip.Addr, share *Share) (shed negotiate.Reason, declines bool) {
	if shed = l.lacks(side, peer); shed == negotiate.ReasonNone {
		return shed, true
	}
	declines = share.decline()
	l.Note()
	return shed, declines
}

// lacks returns why there is no room for a flow that is in the table.
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
