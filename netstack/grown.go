package netstack

import (
	"github.com/smcgw/smcgw/netstack/internal/segment"
)

// grown is what a flow needs whose bytes gVisor moves, from Conn.lead on, before gVisor knows of it. Most wire
// legs never do.
type grown struct {
	origin  segment.Origin // of the endpoint
	numbers segment.Map    // between the wire and the endpoint
	acks    heldACK
	ahead   segment.Ahead // what gVisor keeps after a gap
	stamps  segment.PAWS  // of the peer
	fitting fitting
}

func (f *flow) grow(g *grown) {
	g.fitting.path.V6 = f.key.v6
	f.grown.Store(g)
}

// acked notes an acknowledgement of the peer.
func (f *flow) acked(s *Stack, ack uint32) {
	if g := f.grown.Load(); g != nil {
		g.fitting.acked(ack, s.clock)
	}
}
