package unsteered

import (
	"context"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/host"
)

var (
	_ host.Steering = (*Steering)(nil)
	_ host.Beside   = (*Steering)(nil)
)

// Steering steers nothing. It may be taken over from, and takes over, as one that does.
type Steering struct{ generation int }

// New makes one of a generation; 0 is the first.
func New(generation int) *Steering { return &Steering{generation: max(generation, 1)} }

// Neighbour implements host.Beside.
func (s *Steering) Neighbour() (ebpf.Neighbour, error) {
	return ebpf.Neighbour{Generation: s.generation}, nil
}

// HasNeighbour implements host.Beside: what another gateway has on the host is in the way of nothing.
func (*Steering) HasNeighbour() bool { return false }

// Retire implements host.Beside.
func (s *Steering) Retire() error { return nil }

// Activate implements host.Beside.
func (s *Steering) Activate() error { return nil }

// Flow implements host.Entries: there are none.
func (*Steering) Flow(ebpf.Tuple) (ebpf.Flow, error) { return ebpf.Flow{}, ebpf.ErrNoFlow }

// Transition implements host.Entries.
func (*Steering) Transition(ebpf.Tuple, uint32, ebpf.State, ...ebpf.State) error {
	return ebpf.ErrNoFlow
}

// Delete implements host.Entries.
func (*Steering) Delete(ebpf.Tuple, uint32, ...ebpf.State) error { return ebpf.ErrNoFlow }

// InjectApp implements host.Entries.
func (*Steering) InjectApp([]byte) error { return ebpf.ErrNoFlow }

// DestroySocket implements host.Entries.
func (*Steering) DestroySocket(ebpf.Tuple) (bool, error) { return false, nil }

// LegWaits implements host.Entries.
func (*Steering) LegWaits(ebpf.Tuple) (bool, error) { return false, nil }

// ForgetRequest implements host.Entries.
func (*Steering) ForgetRequest(ebpf.Tuple) (bool, error) { return false, nil }

// ForgetTimeWait implements host.Entries.
func (*Steering) ForgetTimeWait(ebpf.Tuple) (bool, error) { return false, nil }

// Heartbeat implements host.Steering.
func (*Steering) Heartbeat() error { return nil }

// SetMode implements host.Steering.
func (*Steering) SetMode(ebpf.Mode) error { return nil }

// SetOff implements host.Steering.
func (*Steering) SetOff(bool) error { return nil }

// Refuse implements host.Steering.
func (*Steering) Refuse(uint8) error { return nil }

// SetProofs implements host.Steering.
func (*Steering) SetProofs(int) error { return nil }

// Shed implements host.Steering.
func (*Steering) Shed(uint8) error { return nil }

// SetPolicy implements host.Steering.
func (*Steering) SetPolicy([]ebpf.Rule) error { return nil }

// SetRollout implements host.Steering.
func (*Steering) SetRollout(ebpf.Rollout) error { return nil }

// SetCompare implements host.Steering.
func (*Steering) SetCompare(bool) error { return nil }

// Sweep implements host.Steering.
func (*Steering) Sweep(ebpf.SweepLimits) (int, error) { return 0, nil }

// Lingering implements host.Steering.
func (*Steering) Lingering() (int, error) { return 0, nil }

// BlockedLegs implements host.Steering.
func (*Steering) BlockedLegs() []ebpf.BlockedLegs { return nil }

// ProveAgain implements host.Steering.
func (*Steering) ProveAgain() {}

// Counters implements host.Steering.
func (*Steering) Counters() (ebpf.Counters, error) { return ebpf.Counters{}, nil }

// TakeSeen implements host.Steering.
func (*Steering) TakeSeen() ([]ebpf.Seen, error) { return nil, nil }

// TakeCompared implements host.Steering.
func (*Steering) TakeCompared() ([]ebpf.Compared, error) { return nil, nil }

// MapUsage implements host.Steering.
func (*Steering) MapUsage() ([]ebpf.MapUsage, error) { return nil, nil }

// Forget implements host.Steering.
func (*Steering) Forget(netip.Addr, uint16) error { return nil }

// Peers implements host.Steering.
func (*Steering) Peers() ([]ebpf.Peer, error) { return nil, nil }

// FlushPeers implements host.Steering.
func (*Steering) FlushPeers() (int, error) { return 0, nil }

// Close implements host.Steering.
func (*Steering) Close() error { return nil }

// Remember implements host.Steering.
func (*Steering) Remember(netip.Addr, uint16, uint8, time.Duration) error { return nil }

// Events tells of nothing until ctx ends.
func (*Steering) Events(ctx context.Context, _ func(ebpf.Event)) error {
	<-ctx.Done()
	return ctx.Err()
}
