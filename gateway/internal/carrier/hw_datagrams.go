package carrier

import (
	"net/netip"

	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/verbs"
)

// DatagramPort is where datagrams leave and arrive on an adapter.
type DatagramPort struct {
	Device verbs.Device
	Queue  *loop.Queue // for one queue pair
	Port   verbs.PortAttr
	GID    uint8 // of the local address, in Port
}

// DatagramsAt returns the port for datagrams between two addresses, with a completion
// queue on a shard that has room for the work requests of one queue pair: the same for
// each call. It may block. Env.Withdrawn ends the use of the device.
func (h *Hardware) DatagramsAt(local, remote netip.Addr, s *loop.Shard, need int) (at DatagramPort, err error) {
	a, index, _, err := h.portOf(local, remote)
	if err != nil {
		return at, err
	}
	a.datagrams.Lock()
	defer a.datagrams.Unlock()
	if a.datagramLane == nil {
		if a.datagramLane, err = a.lanes.Admit(s, need); err != nil {
			return at, a.explain(err)
		}
	}
	return DatagramPort{Device: a.dev, Queue: a.datagramLane.Queue, Port: *a.port.Load(), GID: index}, nil
}
