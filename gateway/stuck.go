package gateway

import (
	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/negotiate"
)

// stuck is told of an entry whose connection has waited for a while for the next
// step of a handshake. Where there is a flow, that has its own deadlines. Where
// there is none, what should have told us was lost (the queue of a TUN was full):
// the programs drop the retransmissions of its SYN, so the connection is given
// back, or its entry removed where the client sees to that itself.
func (g *gateway) stuck(e ebpf.Flow) {
	t := Tuple(e.Tuple)
	if f := g.find(t); f != nil && f.isn == e.ISN {
		return
	}
	if e.Side == ebpf.SideServer {
		_ = g.steer.Delete(e.Tuple, e.ISN, ebpf.StateWire)
		return
	}
	if !g.hold() {
		return
	}
	f, fresh := g.newFlow(SideClient, t, e.ISN) // from here on a late SYN-ACK finds a flow
	if !fresh {
		g.wg.Done()
		return
	}
	f.syn, f.nonce = e.SYN, e.Nonce
	go f.releaseEarly(negotiate.ReasonHandshakeTimeout)
}
