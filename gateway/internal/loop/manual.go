package loop

import (
	"time"

	"golang.org/x/sys/unix"
)

// Manual drives a shard that is not running, for tests of what is on it.
type Manual struct {
	*Shard
	events [64]unix.EpollEvent
}

// Step runs one turn and handles pending events, without sleeping.
func (m *Manual) Step(now time.Time) (worked bool) {
	worked, _ = m.turn(now)
	m.callOutsiders()
	n := m.poll(m.events[:], 0, true)
	for i := 0; i < n; {
		i = m.dispatch(m.events[:n], i)
	}
	return worked || n > 0
}

// Drive gives the devices a turn, as the loop does, and polls no completion queue. The caller is on the shard.
func (s *Shard) Drive(now time.Time) {
	for _, d := range s.drivers {
		d.Progress(now)
	}
	s.Flush()
}

// Load is how much is on a shard.
type Load struct{ Queues, Members, Descriptors, Later int }

// Load counts what is on the shard. The caller is on it.
func (s *Shard) Load() Load {
	l := Load{Queues: len(s.cqs), Descriptors: len(s.fds), Later: len(s.again) + s.bulk.len()}
	for _, q := range s.cqs {
		l.Members += len(q.Members)
	}
	return l
}
