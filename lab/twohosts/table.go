package twohosts

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// Table has the entries of flows, the packets injected for applications, and what is remembered about peers. It is safe
// for concurrent use.
type Table struct {
	mu       sync.Mutex // guards everything below
	flows    map[ebpf.Tuple]ebpf.Flow
	injected [][]byte
	peers    []ebpf.Peer
}

// NewTable returns a table without entries.
func NewTable() *Table { return &Table{flows: map[ebpf.Tuple]ebpf.Flow{}} }

// Put adds or replaces the entry of a tuple.
func (s *Table) Put(f ebpf.Flow) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flows[f.Tuple] = f
}

// Flow implements host.Entries.
func (s *Table) Flow(t ebpf.Tuple) (ebpf.Flow, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.flows[t]
	if !ok {
		return ebpf.Flow{}, ebpf.ErrNoFlow
	}
	return f, nil
}

// Transition implements host.Entries.
func (s *Table) Transition(t ebpf.Tuple, isn uint32, to ebpf.State, from ...ebpf.State) error {
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

// Delete implements host.Entries.
func (s *Table) Delete(t ebpf.Tuple, isn uint32, _ ...ebpf.State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.flows[t]; ok && f.ISN == isn {
		delete(s.flows, t)
	}
	return nil
}

// InjectApp implements host.Entries. It copies the packet.
func (s *Table) InjectApp(pkt []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.injected = append(s.injected, append([]byte(nil), pkt...))
	return nil
}

// TakeInjected returns what was injected since the last call.
func (s *Table) TakeInjected() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	pkts := s.injected
	s.injected = nil
	return pkts
}

// DestroySocket implements host.Entries. There are no sockets.
func (*Table) DestroySocket(ebpf.Tuple) (bool, error) { return false, nil }

// LegWaits implements host.Entries. There are no sockets.
func (*Table) LegWaits(ebpf.Tuple) (bool, error) { return false, nil }

// ForgetRequest implements host.Entries. There are no requests.
func (*Table) ForgetRequest(ebpf.Tuple) (bool, error) { return false, nil }

// ForgetTimeWait implements host.Entries. There are no sockets.
func (*Table) ForgetTimeWait(ebpf.Tuple) (bool, error) { return false, nil }

// ProveAgain implements host.Steering.
func (*Table) ProveAgain() {}

// Remember implements host.Steering.
func (s *Table) Remember(a netip.Addr, port uint16, reason uint8, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = append(s.peers, ebpf.Peer{Addr: a, Port: port, Reason: reason, TTL: ttl})
	return nil
}

// Forget implements host.Steering.
func (s *Table) Forget(a netip.Addr, port uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = slices.DeleteFunc(s.peers, func(p ebpf.Peer) bool { return p.Addr == a && p.Port == port })
	return nil
}

// Peers implements host.Steering.
func (s *Table) Peers() ([]ebpf.Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]ebpf.Peer(nil), s.peers...), nil
}

// FlushPeers implements host.Steering.
func (s *Table) FlushPeers() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.peers)
	s.peers = nil
	return n, nil
}
