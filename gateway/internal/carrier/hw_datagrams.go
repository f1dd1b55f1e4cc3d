package carrier

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/verbs"
)

// DatagramPort is where datagrams leave and arrive on an adapter.
type DatagramPort struct {
	Device verbs.Device
	Port   verbs.PortAttr
	GID    uint8 // index in Port of the local address's GID

	a *adapter
}

// DatagramsAt returns the port for datagrams between two addresses. It may block.
// Env.Withdrawn ends the use of the device.
func (h *Hardware) DatagramsAt(local, remote netip.Addr) (at DatagramPort, err error) {
	a, index, _, err := h.portOf(local, remote)
	if err != nil {
		return at, err
	}
	return DatagramPort{Device: a.dev, Port: *a.port.Load(), GID: index, a: a}, nil
}

// Hold reserves room for the work requests of one queue pair in a completion queue of a
// shard. The adapter is not closed before leave is called, which must follow the close of the
// queue pair and its domain. It may block.
func (p DatagramPort) Hold(s *loop.Shard, need int) (q *loop.Queue, leave func(), err error) {
	a := p.a
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
