package netstack

import (
	"github.com/smcgw/smcgw/netstack/internal/segment"
)

// grown is the state of a flow whose bytes gVisor moves. Conn.lead sets it before gVisor knows of the flow. Most wire
// legs never need it.
type grown struct {
	origin  segment.Origin // of the endpoint
	numbers segment.Map    // between the wire and the endpoint
	acks    heldACK
	ahead   segment.Ahead // what gVisor keeps ahead of a gap
	stamps  segment.PAWS  // of the peer
	fitting fitting
}

func (f *flow) grow(g *grown) {
	g.fitting.path.V6 = f.key.v6
	f.grown.Store(g)
}

// acked records an acknowledgement by the peer.
func (f *flow) acked(s *Stack, ack uint32) {
	if g := f.grown.Load(); g != nil {
		g.fitting.acked(ack, s.clock)
	}
}
