package queues

// firstSends is the initial length of a ring, allocated with its first work request.
const firstSends = 1

// Sends holds the work requests that have not completed yet. They complete in order; the counters only grow: Retired <=
// Done <= posted.
type Sends[T any] struct {
	Done    uint64 // completion queued, or not requested
	Retired uint64 // completion polled
	posted  uint64
	ring    []T // grows on demand; length a power of two
}

// Posted returns the number of work requests ever posted.
func (s *Sends[T]) Posted() uint64 { return s.posted }

// Idle reports whether everything posted has completed.
func (s *Sends[T]) Idle() bool { return s.Done == s.posted }

// Held returns the number of work requests whose completion was not polled yet.
func (s *Sends[T]) Held() uint64 { return s.posted - s.Retired }

// Slot returns work request i, which must be posted and not completed.
func (s *Sends[T]) Slot(i uint64) *T { return &s.ring[i&uint64(len(s.ring)-1)] }

// Oldest returns the oldest work request that has not completed.
func (s *Sends[T]) Oldest() *T { return s.Slot(s.Done) }

// Push returns the next slot with its previous contents, so that its slices can be reused.
func (s *Sends[T]) Push() *T {
	if s.posted-s.Done == uint64(len(s.ring)) {
		s.grow()
	}
	s.posted++
	return s.Slot(s.posted - 1)
}

func (s *Sends[T]) grow() {
	ring := make([]T, max(firstSends, 2*len(s.ring)))
	for i := s.Done; i != s.posted; i++ {
		ring[i&uint64(len(ring)-1)] = *s.Slot(i)
	}
	s.ring = ring
}

// Reset drops what is posted. Counters go on, since completions refer to them.
func (s *Sends[T]) Reset() { s.Done, s.Retired = s.posted, s.posted }
