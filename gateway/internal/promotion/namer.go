package promotion

import (
	"github.com/smcgw/smcgw/ebpf/witness"
	"github.com/smcgw/smcgw/inprocess/broker"
)

// namer names connections by their initial sequence numbers.
type namer struct{ program *witness.Sequences }

// Name implements broker.Namer.
func (n namer) Name(fd int) (broker.Sequences, broker.Role, bool) {
	s, client, err := n.program.Of(fd)
	if err != nil {
		return broker.Sequences{}, broker.RoleUnknown, false
	}
	r := broker.RoleServer
	if client {
		r = broker.RoleClient
	}
	return broker.Sequences{Mine: s.Mine, Peer: s.Peer}, r, true
}
