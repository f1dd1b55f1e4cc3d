package conn

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// fakeSteering keeps flow entries in a map, and what was remembered of peers.
type fakeSteering struct {
	mu       sync.Mutex // guards everything below
	flows    map[ebpf.Tuple]ebpf.Flow
	injected [][]byte
	peers    []ebpf.Peer
}

func newFakeSteering() *fakeSteering { return &fakeSteering{flows: map[ebpf.Tuple]ebpf.Flow{}} }

func (s *fakeSteering) put(f ebpf.Flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flows[f.Tuple] = f
}

func (s *fakeSteering) Flow(t ebpf.Tuple) (ebpf.Flow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.flows[t]
	if !ok {
		return ebpf.Flow{}, ebpf.ErrNoFlow
	}
	return f, nil
}

func (s *fakeSteering) Transition(t ebpf.Tuple, isn uint32, to ebpf.State, from ...ebpf.State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.flows[t]
	switch {
	case !ok:
		return ebpf.ErrNoFlow
	case f.ISN != isn:
		return ebpf.ErrReplaced
	}
	if !slices.Contains(from, f.State) {
		return ebpf.ErrState
	}
	f.State = to
	s.flows[t] = f
	return nil
}

func (s *fakeSteering) Delete(t ebpf.Tuple, isn uint32, _ ...ebpf.State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.flows[t]; ok && f.ISN == isn {
		delete(s.flows, t)
	}
	return nil
}

func (s *fakeSteering) InjectApp(pkt []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.injected = append(s.injected, append([]byte(nil), pkt...))
	return nil
}

// takeInjected returns what was injected since it was called last.
func (s *fakeSteering) takeInjected() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	pkts := s.injected
	s.injected = nil
	return pkts
}

func (*fakeSteering) DestroySocket(ebpf.Tuple) (bool, error)  { return false, nil }
func (*fakeSteering) AppConnected(ebpf.Tuple) (bool, error)   { return false, nil }
func (*fakeSteering) ForgetTimeWait(ebpf.Tuple) (bool, error) { return false, nil }
func (*fakeSteering) ProveAgain()                             {}

func (s *fakeSteering) Remember(a netip.Addr, port uint16, reason uint8, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = append(s.peers, ebpf.Peer{Addr: a, Port: port, Reason: reason, TTL: ttl})
	return nil
}

func (s *fakeSteering) Forget(a netip.Addr, port uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = slices.DeleteFunc(s.peers, func(p ebpf.Peer) bool { return p.Addr == a && p.Port == port })
	return nil
}
