package promotion

import (
	"github.com/smcgw/smcgw/ebpf/witness"
	"github.com/smcgw/smcgw/inprocess/broker"
)

// namer names connections by their initial sequence numbers.
type namer struct{ program *witness.Sequences }

// Name implements broker.Namer.
func (n namer) Name(fd int, r broker.Role) (broker.Sequences, broker.Role, bool) {
	s, client, err := n.program.Of(fd, r == broker.RoleClient)
	if err != nil {
		return broker.Sequences{}, r, false
	}
	if r = broker.RoleServer; client {
		r = broker.RoleClient
	}
	return broker.Sequences{Mine: s.Mine, Peer: s.Peer}, r, true
}
