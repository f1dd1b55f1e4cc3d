package shm

import (
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// invalidate ends the peer's access to one of our regions, if the region has
// the right need. Local use goes on.
func (p *Peer) invalidate(key uint32, need verbs.Access) bool {
	m := p.keys.find(key)
	if m == nil || m.access&need != need {
		return false
	}
	if m.shared { // the entry may have got another owner meanwhile
		p.own.word(p.ownLayout.mrEntry(key>>16)).CompareAndSwap(mrWord(key, m.access), 0)
	}
	return true
}

// localInv ends the access and waits until the peer has seen it: copies of its
// loops may be under way, and it may hold a span of MapRemote (grace.go). With
// SEND_WITH_INV that is the peer's own concern.
func (q *qp) localInv(s *sendSlot) bool {
	if !s.started {
		s.started = true
		if !q.peer.invalidate(s.imm, 0) {
			q.failed(s, verbs.WCLocQPOpErr)
			return true
		}
		seen := new(atomic.Bool)
		q.inv = seen
		q.peer.AfterGrace(func() {
			seen.Store(true)
			q.vec.nudge(q)
		})
	}
	s.finished = q.inv.Load()
	return s.finished
}
