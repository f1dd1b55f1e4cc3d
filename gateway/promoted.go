package gateway

import "github.com/smcgw/smcgw/ebpf"

// settlePromotion applies rules and mode to programs with the library.
func (g *gateway) settlePromotion() {
	g.host.promotion.Report(g.feed)
	g.host.promotion.Set(g.live.Load().Config, g.mode(), g.shareNow())
	g.engine().settleBeyond()
}

// servePromotion starts serving those programs, unless the gateway is draining or ending.
func (g *gateway) servePromotion() {
	if !g.drainer.Draining() && !g.stopping.Load() {
		g.host.promotion.Serve(true)
	}
}

// shareNow returns the current share of the rollout.
func (g *gateway) shareNow() ebpf.Share {
	s := g.rollout.Share()
	if s == 0 {
		return ebpf.ShareAll
	}
	return ebpf.ShareOf(s.Percent())
}
