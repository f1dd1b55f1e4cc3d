package negotiate

import (
	"encoding/binary"
	"sync"
)

// seenMost is how many MACs one generation of a Seen holds.
const seenMost = 32768

// Seen remembers the PROPOSALs that were believed, so that no PROPOSAL is believed twice: the sequence numbers to which
// a PROPOSAL is bound come from a clock and recur after minutes. It remembers the last 32768 to 65536. The zero value
// is ready to use. It is safe for concurrent use.
type Seen struct {
	mu         sync.Mutex // guards everything below
	young, old map[uint64]struct{}
}

// first reports whether mac is new. It compares only a quarter of the MAC: only a sender that has the key could make
// two that share it.
func (s *Seen) first(mac MAC) bool {
	k := binary.BigEndian.Uint64(mac[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.young[k]; again {
		return false
	}
	if _, again := s.old[k]; again {
		return false
	}
	if len(s.young) >= seenMost || s.young == nil {
		s.old, s.young = s.young, map[uint64]struct{}{}
	}
	s.young[k] = struct{}{}
	return true
}
