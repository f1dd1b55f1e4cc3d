package promotion

import (
	"github.com/smcgw/smcgw/ebpf/sequence"
	"github.com/smcgw/smcgw/inprocess/broker"
)

// namer names connections by their initial sequence numbers.
type namer struct{ program *sequence.Program }

// Name implements broker.Namer. What a socket is must be known: a client's own SYN counts.
func (n namer) Name(fd int, role broker.Role) (broker.Sequences, bool) {
	if role == broker.RoleUnknown {
		return broker.Sequences{}, false
	}
	s, err := n.program.Of(fd, role == broker.RoleClient)
	return broker.Sequences{Mine: s.Mine, Peer: s.Peer}, err == nil
}
