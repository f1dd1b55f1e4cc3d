package conn

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/host"
)

// Stuck handles an entry whose connection has waited long for the next step of a handshake. A
// flow has its own deadlines. If there is none, the packet that should have created one was
// lost on the way here (the queue of a TUN was full). The application has connected natively
// or given up meanwhile, and nothing else would remove the entry.
func (d *Desk) Stuck(e ebpf.Flow) {
	if f := d.Find(host.Tuple(e.Tuple)); f == nil || f.ISN != e.ISN {
		_ = d.Env.Steering.Delete(e.Tuple, e.ISN, e.State) // fails if the entry has changed meanwhile
	}
}
