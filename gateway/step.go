package gateway

import (
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
)

// servicePort is the server's port of a connection.
func servicePort(t host.Tuple, side config.Side) uint16 {
	if side == config.SideServer {
		return t.Local.Port()
	}
	return t.Remote.Port()
}

// step is called where a flow arrives at a step: it panics if that is asked for,
// and reports whether the flow is to stay there.
func (f *flow) step(step string) (held bool) {
	k := f.g.debug
	if k == nil {
		return false
	}
	return k.Reach(step, servicePort(f.tuple, f.side))
}
