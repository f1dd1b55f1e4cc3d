package gateway

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// fakeSteering keeps flow entries in a map and counts heartbeats.
type fakeSteering struct {
	mu       sync.Mutex // guards everything below
	flows    map[ebpf.Tuple]ebpf.Flow
	injected [][]byte
	beats    int
	mode     ebpf.Mode
	off      bool
	peers    []ebpf.Peer
	services map[netip.AddrPort]ebpf.Service
	counters ebpf.Counters
	policy   []ebpf.Rule
	refuse   error // of SetPolicy

	refused   uint8 // of Refuse
	shed      uint8 // of Shed
	lingering int
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

func (*fakeSteering) DestroySocket(ebpf.Tuple) (bool, error)  { return false, nil }
func (*fakeSteering) AppConnected(ebpf.Tuple) (bool, error)   { return false, nil }
func (*fakeSteering) ForgetTimeWait(ebpf.Tuple) (bool, error) { return false, nil }

func (s *fakeSteering) Heartbeat() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats++
	return nil
}

func (s *fakeSteering) SetMode(m ebpf.Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
	return nil
}

func (s *fakeSteering) SetOff(off bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = off
	return nil
}

func (s *fakeSteering) Refuse(reason uint8) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = reason
	return nil
}

func (*fakeSteering) SetProofs(int) error { return nil }

func (s *fakeSteering) Shed(reason uint8) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shed = reason
	return nil
}

func (s *fakeSteering) Lingering() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lingering, nil
}

func (s *fakeSteering) SetPolicy(rules []ebpf.Rule) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse == nil {
		s.policy = rules
	}
	return s.refuse
}

func (*fakeSteering) Sweep(ebpf.SweepLimits) (int, error) { return 0, nil }

func (*fakeSteering) Events(ctx context.Context, _ func(ebpf.Event)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (*fakeSteering) BlockedLegs() []ebpf.BlockedLegs { return nil }
func (*fakeSteering) ProveAgain()                     {}

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

func (s *fakeSteering) Peers() ([]ebpf.Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]ebpf.Peer(nil), s.peers...), nil
}

func (s *fakeSteering) FlushPeers() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.peers)
	s.peers = nil
	return n, nil
}

func (s *fakeSteering) SetService(v ebpf.Service) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.services == nil {
		s.services = map[netip.AddrPort]ebpf.Service{}
	}
	v.Passed = s.services[netip.AddrPortFrom(v.Addr, v.Port)].Passed
	s.services[netip.AddrPortFrom(v.Addr, v.Port)] = v
	return nil
}

func (s *fakeSteering) Services() ([]ebpf.Service, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.services)), nil
}

func (s *fakeSteering) FlushServices() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.services)
	clear(s.services)
	return n, nil
}

func (s *fakeSteering) Counters() (ebpf.Counters, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counters, nil
}

func (*fakeSteering) MapUsage() ([]ebpf.MapUsage, error) { return nil, nil }

func (*fakeSteering) Close() error { return nil }
