package negotiate

import (
	"encoding/binary"
	"sync"
)

// seenMost is how many MACs one generation of Seen holds.
const seenMost = 32768

// Seen remembers the PROPOSALs that were believed, so that none is believed twice: the sequence numbers that it is bound to
// are drawn from a clock and come again after minutes. It holds the last 32768 to 65536. The zero value is ready; it is safe
// for concurrent use.
type Seen struct {
	mu         sync.Mutex // guards everything below
	young, old map[uint64]struct{}
}

// first reports whether this MAC is seen for the first time. A quarter of it is enough: only a sender with the key
// could make two that share it.
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
