package conn

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/host"
)

// Stuck is told of an entry whose connection has waited for long for the next step
// of a handshake. Where there is a flow, that has its own deadlines. Where there is
// none, the packet that should have made one was lost on the way to us (the queue
// of a TUN was full). Its application has connected natively meanwhile or given
// up, and nothing but this ends the entry.
func (d *Desk) Stuck(e ebpf.Flow) {
	if f := d.Find(host.Tuple(e.Tuple)); f == nil || f.ISN != e.ISN {
		_ = d.Env.Steering.Delete(e.Tuple, e.ISN, e.State) // what has changed meanwhile is not stuck
	}
}
