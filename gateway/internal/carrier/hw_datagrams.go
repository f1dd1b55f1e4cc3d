package carrier

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
)

// DatagramsAt returns the adapter for datagrams between two addresses. It may block, as its
// Hold may. Env.Withdrawn ends the use of the device.
func (h *Hardware) DatagramsAt(local, remote netip.Addr) (at DatagramDevice, err error) {
	a, index, _, err := h.portOf(local, remote)
	if err != nil {
		return at, err
	}
	hw := h.env.Config.HW
	return DatagramDevice{
		Device: a.dev, Port: *a.port.Load(), GID: index, TrafficClass: hw.TrafficClass, ServiceLevel: hw.ServiceLevel(),
		Mixed: hw.Mixed == config.SwitchOn, Hold: a.holdFor,
	}, nil
}

// holdFor reserves room for the work requests of a queue pair for datagrams in a completion
// queue of a shard.
func (a *adapter) holdFor(s *loop.Shard, need int) (q *loop.Queue, leave func(), err error) {
	if err := a.holdDatagrams(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", a.name, err)
	}
	ln, err := a.lanes.Admit(s, need)
	if err != nil {
		a.leaveDatagrams()
		return nil, nil, a.explain(err)
	}
	return ln.Queue, sync.OnceFunc(func() {
		ln.Leave(s, need)
		a.leaveDatagrams()
	}), nil
}

// holdDatagrams counts a queue pair for datagrams; leaveDatagrams uncounts it.
func (a *adapter) holdDatagrams() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaving {
		return ErrYielded
	}
	a.datagrams++
	return nil
}

func (a *adapter) leaveDatagrams() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.datagrams--
}
