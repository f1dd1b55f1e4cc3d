package ebpf

import (
	"net/netip"
	"time"
)

// Prompt has the methods that shards call. None of them waits for what the host is configuring, such as programs being
// attached to devices.
type Prompt interface {
	Heartbeat() error
	ProveAgain()
	Shed(reason uint8) error
	Decide(q Query) Verdict

	Flow(t Tuple) (Flow, error)
	Transition(t Tuple, isn uint32, to State, from ...State) error
	Delete(t Tuple, isn uint32, from ...State) error
	InjectApp(pkt []byte) error
	DestroySocket(t Tuple) (bool, error)
	LegWaits(t Tuple) (bool, error)
	ForgetTimeWait(t Tuple) (bool, error)
	ForgetRequest(t Tuple) (bool, error)

	Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error
	Forget(addr netip.Addr, port uint16) error

	SetDatagramPeer(p DatagramPeer) error
	ForgetDatagramPeer(addr netip.Addr, port uint16) error
	OpenDatagram(t Tuple, ifindex, rule int) error
	CloseDatagram(t Tuple, reason uint8, ttl time.Duration) error
	DatagramIfindex(t Tuple) (int, error)
	RouteDevice(local, remote netip.Addr) (ifindex int, err error)
}

var _ Prompt = (*Datapath)(nil)
