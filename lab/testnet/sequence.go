package testnet

import (
	"encoding/binary"
	"math/rand/v2"
)

// sequences rewrites sequence numbers as firewalls do that do not trust the
// hosts' own: each direction of a connection is shifted by a number drawn at its
// SYN. SACK blocks are left alone, which is what many of them do, too, so
// acknowledged blocks make no sense to their receiver. A connection whose SYN was
// not seen is left alone. The zero value is ready.
type sequences struct {
	shifts map[string]shift // by frameView.key of a direction
}

// shift is what one direction's numbers are changed by.
type shift struct{ isn, by uint32 }

// pass rewrites one frame in place and reports whether it did. begin: connections
// that begin now are rewritten.
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

// begin notes the SYN of a direction.
func (s *sequences) begin(there, back string, isn uint32, answer, begin bool, luck *rand.Rand) {
	if s.shifts == nil || len(s.shifts) > mirrorLimit {
		s.shifts = map[string]shift{}
	}
	if old, ok := s.shifts[there]; ok && old.isn == isn {
		return // sent again
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
