package testnet

import (
	"math/rand/v2"

	"github.com/smcgw/smcgw/packet"
)

// sequences rewrites sequence numbers, as firewalls do that do not trust those of the hosts: each direction of a
// connection is shifted by a number drawn at its SYN. Like many firewalls it does not rewrite SACK blocks, so these
// make no sense to their receiver. It leaves a connection alone whose SYN it has not seen. The zero value is ready to
// use.
type sequences struct {
	shifts map[string]shift // by frameView.key of a direction
}

// shift is the change of one direction's numbers.
type shift struct{ isn, by uint32 }

// pass rewrites one frame in place and reports whether it did. begin says whether to rewrite new connections.
func (s *sequences) pass(frame []byte, begin bool, luck *rand.Rand) bool {
	if len(s.shifts) == 0 && !begin {
		return false
	}
	v, ok := viewFrame(frame)
	if !ok {
		return false
	}
	there, back := v.key(false), v.key(true)
	if v.Flags()&packet.FlagSYN != 0 {
		s.begin(there, back, v.Seq(), v.Flags()&packet.FlagACK != 0, begin, luck)
	}
	own, known := s.shifts[there]
	if !known {
		return false
	}
	v.SetSeq(v.Seq() + own.by)
	if peer, ok := s.shifts[back]; ok && v.Flags()&packet.FlagACK != 0 {
		v.SetAck(v.Ack() - peer.by)
	}
	v.mend()
	return true
}

// begin handles the SYN of a direction.
func (s *sequences) begin(there, back string, isn uint32, answer, begin bool, luck *rand.Rand) {
	if s.shifts == nil || len(s.shifts) > mirrorLimit {
		s.shifts = map[string]shift{}
	}
	if old, ok := s.shifts[there]; ok && old.isn == isn {
		return // a retransmission
	}
	_, opened := s.shifts[back]
	switch {
	case answer && opened, !answer && begin:
		s.shifts[there] = shift{isn, luck.Uint32()}
		if !answer {
			delete(s.shifts, back)
		}
	case !answer:
		delete(s.shifts, there)
		delete(s.shifts, back)
	}
}
