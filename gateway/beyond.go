package gateway

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/beyond"
	"github.com/smcgw/smcgw/gateway/internal/promotion"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// maxBeyond bounds the connections promoted between hosts. descriptorsOfEach is the share of
// the descriptor limit set aside for each; each has four descriptors, and queue pairs.
const (
	maxBeyond         = 16384
	descriptorsOfEach = 16
)

// settleBeyond starts or stops promoting connections whose programs are on two hosts, as
// configuration, mode, off switch and drain require. When it stops, promoted connections
// continue over the kernel. It does nothing if no program is served or the port is disabled.
// If another gateway has the port, the chores retry.
func (e *engine) settleBeyond() {
	if e == nil {
		return
	}
	e.opening.Lock()
	defer e.opening.Unlock()
	served, port := e.host.promotion, e.cfg.DatagramPort.Port()
	switch g := e.g; {
	case served == nil || port == 0:
	case e.ends() || g.stopping.Load() || g.drainer.Draining():
		e.closeBeyond(served, negotiate.ReasonDrained)
	case g.live.Load().InProcess.BetweenHosts != config.SwitchOn || g.off.Load() || g.mode() != report.ModeEnforce:
		e.closeBeyond(served, negotiate.ReasonOff)
	case e.beyond == nil:
		e.openBeyond(served, port)
	}
}

func (e *engine) closeBeyond(served *promotion.Service, why negotiate.Reason) {
	if e.beyond != nil {
		served.SetBeyond(nil)
		e.beyond.Close(why)
		e.beyond = nil
	}
}

func (e *engine) openBeyond(served *promotion.Service, port uint16) {
	s, err := beyond.Open(beyond.Config{
		GatewayID: e.env.GatewayID, HostID: e.env.HostID, Port: port, Priority: e.host.Priority, Keys: e.env.Keys.Load,
		Shards: e.shards, Providers: e.env.Providers, MaxConns: min(maxBeyond, process.DescriptorLimit()/descriptorsOfEach), NativeFor: e.cfg.Fallback.NegativeCache,
		Memory: int64(e.cfg.Limits.Memory), Pays: served.Pays, Peers: e.peers, Log: e.g.log,
	})
	if err != nil {
		if !e.noBeyond {
			e.g.log.Warn("nothing is promoted between hosts, until the port is free", "error", err)
		}
		e.noBeyond = true
		return
	}
	e.beyond, e.noBeyond = s, false
	served.SetBeyond(s)
}

// settlePromotion applies rules and mode to programs with the library.
func (g *gateway) settlePromotion() {
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
