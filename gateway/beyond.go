package gateway

import (
	"github.com/smcgw/smcgw/gateway/internal/beyond"
	"github.com/smcgw/smcgw/inprocess/broker"
	"github.com/smcgw/smcgw/negotiate"
)

// openBeyond has connections promoted whose programs are on two hosts, unless they are, no program is served, the port is
// configured away or another gateway's, or the gateway goes. The chores try again.
func (e *engine) openBeyond() {
	e.opening.Lock()
	defer e.opening.Unlock()
	served, port := e.host.promotion, e.cfg.DatagramPort.Port()
	if served == nil || port == 0 || e.beyond != nil || e.ends() || e.g.stopping.Load() || e.g.drainer.Draining() {
		return
	}
	s, err := beyond.Open(beyond.Config{
		GatewayID: e.env.GatewayID, HostID: e.env.HostID, Port: port, Priority: e.host.Priority, Keys: e.env.Keys.Load,
		Shards: e.shards, Providers: e.env.Providers, MaxConns: e.cfg.InProcess.MaxConnections, NativeFor: e.cfg.Fallback.NegativeCache,
		Carries: func(h *broker.Half, kind negotiate.CarrierKind) bool { return served.Pays(h, kind) }, Log: e.g.log,
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

// closeBeyond has what is promoted between hosts go on by the kernel.
func (e *engine) closeBeyond() {
	if e == nil {
		return
	}
	e.opening.Lock()
	defer e.opening.Unlock()
	if e.beyond != nil {
		e.host.promotion.SetBeyond(nil)
		e.beyond.Close()
		e.beyond = nil
	}
}

// reopenBeyond is openBeyond of a gateway that may carry nothing.
func (e *engine) reopenBeyond() {
	if e != nil {
		e.openBeyond()
	}
}
