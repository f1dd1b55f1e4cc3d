package memhost

import (
	"slices"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// linger is LINGER_NS of the programs: how long released and dead entries still
// decide.
const linger = 5 * time.Second

// challenged is CHALLENGE_NS: an ACK that comes so long after a release is no late
// one, but the challenge of a socket that a gateway left behind.
const challenged = 500 * time.Millisecond

// live: the gateway works on the connection and must hear of its end.
func live(s ebpf.State) bool { return s >= ebpf.StateNegotiating && s <= ebpf.StateRaw }

// hasLeg: the local application's segments go to a gateway socket.
func hasLeg(s ebpf.State) bool {
	switch s {
	case ebpf.StateCompleting, ebpf.StateCarrying, ebpf.StateServing, ebpf.StateRaw:
		return true
	default:
		return false
	}
}

// stateOf is the state of an entry that may be missing.
func stateOf(f *ebpf.Flow) ebpf.State {
	if f == nil {
		return ebpf.StateNone
	}
	return f.State
}

// move changes the state of an entry.
func (m *Model) move(f *ebpf.Flow, to ebpf.State) { f.State, f.ChangedAt = to, m.now() }

// create makes an entry in place of any old one; false when the table is full.
func (m *Model) create(s *segment, f ebpf.Flow) bool {
	if _, known := m.flows[s.tuple]; !known && len(m.flows) >= m.cfg.MaxFlows {
		return false
	}
	f.Tuple, f.ISN, f.OfferedAt = s.tuple, s.seq, m.now()
	f.ChangedAt = f.OfferedAt
	if f.Side == ebpf.SideClient {
		f.SYN = append([]byte(nil), s.raw[:s.tcpAt+s.tcpLen]...)
	}
	m.flows[s.tuple] = &f
	return true
}

// remove deletes an entry.
func (m *Model) remove(f *ebpf.Flow) { delete(m.flows, f.Tuple) }

// Flow implements host.Steering.
func (m *Model) Flow(t ebpf.Tuple) (ebpf.Flow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[t]
	if f == nil {
		return ebpf.Flow{}, ebpf.ErrNoFlow
	}
	c := *f
	c.Age = m.now() - f.ChangedAt
	c.SYN = append([]byte(nil), f.SYN...)
	return c, nil
}

// Transition implements host.Steering.
func (m *Model) Transition(t ebpf.Tuple, isn uint32, to ebpf.State, from ...ebpf.State) error {
	return m.swap(t, isn, from, func(f *ebpf.Flow) { m.move(f, to) })
}

// Delete implements host.Steering.
func (m *Model) Delete(t ebpf.Tuple, isn uint32, from ...ebpf.State) error {
	return m.swap(t, isn, from, m.remove)
}

// swap changes an entry if it is the one that is meant.
func (m *Model) swap(t ebpf.Tuple, isn uint32, from []ebpf.State, change func(*ebpf.Flow)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.flows[t]
	switch {
	case m.closed:
		return errClosed
	case f == nil:
		return ebpf.ErrNoFlow
	case f.ISN != isn:
		return ebpf.ErrReplaced
	case !among(f.State, from):
		return &ebpf.StateError{Have: f.State}
	}
	change(f)
	return nil
}

// among: no states given means any.
func among(s ebpf.State, states []ebpf.State) bool {
	return len(states) == 0 || slices.Contains(states, s)
}

// Sweep implements host.Steering. A dead entry stays while its app leg still
// delivers.
func (m *Model) Sweep(l ebpf.SweepLimits) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, errClosed
	}
	now, n := m.now(), 0
	for t, f := range m.flows {
		if age := sweepAge(l, f.State); age > 0 && now-f.ChangedAt > age && !m.legLives(t) {
			delete(m.flows, t)
			n++
		}
	}
	m.sweepNotes(now)
	m.sweepLegs(now)
	return n, nil
}

// sweepAge is the age at which an entry in a state is stale, 0 for never.
func sweepAge(l ebpf.SweepLimits, s ebpf.State) time.Duration {
	age, def := time.Duration(0), linger
	switch s {
	case ebpf.StateOffered:
		age, def = l.Offered, offeredAge
	case ebpf.StateReleased:
		age = l.Released
	case ebpf.StateReturned:
		age = l.Returned
	case ebpf.StateDead:
		age = l.Dead
	default:
		return 0
	}
	if age > 0 {
		return age
	}
	return def
}

// offeredAge is how long an offered SYN may go without an answer: a
// retransmission deletes the entry after a second.
const offeredAge = 10 * time.Second
