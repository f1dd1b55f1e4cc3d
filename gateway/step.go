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

// step is called where a flow arrives at a step, and reports whether it is to stay
// there.
func (f *flow) step(step string) (held bool) {
	return f.g.faults != nil && f.g.faults.At(step, servicePort(f.tuple, f.side))
}
