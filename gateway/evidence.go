package gateway

import "github.com/smcgw/smcgw/gateway/config"

// contradicted forgets what a carried connection shows to be out of date about its
// peer.
func (g *gateway) contradicted(f *flow) {
	addr, port := f.tuple.Remote.Addr(), f.tuple.Remote.Port()
	if f.side == config.SideServer {
		port = 0
	}
	for _, p := range g.peers.Contradicted(addr, port, f.start, g.policy) {
		g.log.Debug("forget peer", "peer", addr, "port", p)
		if err := g.steer.Forget(addr, p); err != nil {
			g.log.Warn("forget peer", "peer", addr, "port", p, "error", err)
		}
	}
}
