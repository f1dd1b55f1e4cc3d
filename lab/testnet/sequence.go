package testnet

import (
	"encoding/binary"
	"math/rand/v2"
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
	seq := binary.BigEndian.Uint32(frame[v.tcp+4:])
	if v.flags()&0x02 != 0 {
		s.begin(there, back, seq, v.flags()&0x10 != 0, begin, luck)
	}
	own, known := s.shifts[there]
	if !known {
		return false
	}
	binary.BigEndian.PutUint32(frame[v.tcp+4:], seq+own.by)
	if peer, ok := s.shifts[back]; ok && v.flags()&0x10 != 0 {
		ack := binary.BigEndian.Uint32(frame[v.tcp+8:])
		binary.BigEndian.PutUint32(frame[v.tcp+8:], ack-peer.by)
	}
	v.fixChecksum()
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
