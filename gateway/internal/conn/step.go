package conn

import (
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
)

// ServicePort is the server's port of a connection.
func ServicePort(t host.Tuple, side report.Side) uint16 {
	if side == report.SideServer {
		return t.Local.Port()
	}
	return t.Remote.Port()
}

// step is called where a flow arrives at a step, and reports whether it is to stay
// there.
func (f *Flow) step(step string) (held bool) {
	return f.env.Faults != nil && f.env.Faults.At(step, ServicePort(f.Tuple, f.Side))
}
