package conn

import (
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
)

// ServicePort returns the server's port of a connection.
func ServicePort(t host.Tuple, side report.Side) uint16 {
	if side == report.SideServer {
		return t.Local.Port()
	}
	return t.Remote.Port()
}

// step is called where a flow reaches a step for fault injection, and reports whether it is
// to be held there.
func (f *Flow) step(step string) (held bool) {
	return f.env.Faults != nil && f.env.Faults.At(step, ServicePort(f.Tuple, f.Side))
}
