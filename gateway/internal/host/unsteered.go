package host

import (
	"context"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

var (
	_ Steering = (*Unsteered)(nil)
	_ Beside   = (*Unsteered)(nil)
)

// Unsteered is the steering of a host without one: the configuration disables it, or the kernel lacks it. A gateway on
// it carries nothing. It serves programs with the library, and has everything else that a gateway has: admin socket,
// modes, metrics, takeover.
type Unsteered struct{ generation int }

// NewUnsteered makes one with a generation; 0 becomes 1, the first.
func NewUnsteered(generation int) *Unsteered {
	return &Unsteered{generation: max(generation, 1)}
}

// Neighbour implements Beside.
func (u *Unsteered) Neighbour() (ebpf.Neighbour, error) {
	return ebpf.Neighbour{Generation: u.generation}, nil
}

// HasNeighbour implements Beside: another gateway's steering does not conflict with none.
func (*Unsteered) HasNeighbour() bool { return false }

// Retire implements Beside.
func (u *Unsteered) Retire() error { return nil }

// Activate implements Beside.
func (u *Unsteered) Activate() error { return nil }

// Flow implements Entries: there are no entries.
func (*Unsteered) Flow(ebpf.Tuple) (ebpf.Flow, error) { return ebpf.Flow{}, ebpf.ErrNoFlow }

// Transition implements Entries.
func (*Unsteered) Transition(ebpf.Tuple, uint32, ebpf.State, ...ebpf.State) error {
	return ebpf.ErrNoFlow
}

// Delete implements Entries.
func (*Unsteered) Delete(ebpf.Tuple, uint32, ...ebpf.State) error { return ebpf.ErrNoFlow }

// InjectApp implements Entries.
func (*Unsteered) InjectApp([]byte) error { return ebpf.ErrNoFlow }

// DestroySocket implements Entries.
func (*Unsteered) DestroySocket(ebpf.Tuple) (bool, error) { return false, nil }

// LegWaits implements Entries.
func (*Unsteered) LegWaits(ebpf.Tuple) (bool, error) { return false, nil }

// ForgetRequest implements Entries.
func (*Unsteered) ForgetRequest(ebpf.Tuple) (bool, error) { return false, nil }

// ForgetTimeWait implements Entries.
func (*Unsteered) ForgetTimeWait(ebpf.Tuple) (bool, error) { return false, nil }

// Heartbeat implements Steering.
func (*Unsteered) Heartbeat() error { return nil }

// SetMode implements Steering.
func (*Unsteered) SetMode(ebpf.Mode) error { return nil }

// SetOff implements Steering.
func (*Unsteered) SetOff(bool) error { return nil }

// Refuse implements Steering.
func (*Unsteered) Refuse(uint8) error { return nil }

// SetProofs implements Steering.
func (*Unsteered) SetProofs(int) error { return nil }

// Shed implements Steering.
func (*Unsteered) Shed(uint8) error { return nil }

// SetPolicy implements Steering.
func (*Unsteered) SetPolicy([]ebpf.Rule) error { return nil }

// SetRollout implements Steering.
func (*Unsteered) SetRollout(ebpf.Rollout) error { return nil }

// SetCompare implements Steering.
func (*Unsteered) SetCompare(bool) error { return nil }

// Sweep implements Steering.
func (*Unsteered) Sweep(ebpf.SweepLimits) (int, error) { return 0, nil }

// Lingering implements Steering.
func (*Unsteered) Lingering() (int, error) { return 0, nil }

// BlockedLegs implements Steering.
func (*Unsteered) BlockedLegs() []ebpf.BlockedLegs { return nil }

// ProveAgain implements Steering.
func (*Unsteered) ProveAgain() {}

// Counters implements Steering.
func (*Unsteered) Counters() (ebpf.Counters, error) { return ebpf.Counters{}, nil }

// TakeSeen implements Steering.
func (*Unsteered) TakeSeen() ([]ebpf.Seen, error) { return nil, nil }

// TakeCompared implements Steering.
func (*Unsteered) TakeCompared() ([]ebpf.Compared, error) { return nil, nil }

// MapUsage implements Steering.
func (*Unsteered) MapUsage() ([]ebpf.MapUsage, error) { return nil, nil }

// Forget implements Steering.
func (*Unsteered) Forget(netip.Addr, uint16) error { return nil }

// Peers implements Steering.
func (*Unsteered) Peers() ([]ebpf.Peer, error) { return nil, nil }

// FlushPeers implements Steering.
func (*Unsteered) FlushPeers() (int, error) { return 0, nil }

// Close implements Steering.
func (*Unsteered) Close() error { return nil }

// Remember implements Steering.
func (*Unsteered) Remember(netip.Addr, uint16, uint8, time.Duration) error { return nil }

// Events reports nothing until ctx ends.
func (*Unsteered) Events(ctx context.Context, _ func(ebpf.Event)) error {
	<-ctx.Done()
	return ctx.Err()
}
