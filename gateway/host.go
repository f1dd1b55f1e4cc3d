package gateway

import (
	"context"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/netstack"
)

// Tuple names a TCP connection in the local application's direction.
type Tuple struct {
	Local, Remote netip.AddrPort
}

// Host is the machine a gateway runs on.
type Host struct {
	Steering Steering
	Legs     Legs
	// Link is the wire side of the steering, for the wire legs' TCP.
	Link netstack.Link
	// Datagrams steers those of UDP programs; nil on hosts that cannot.
	Datagrams Datagrams
	// Beside lets another gateway take over on this host; nil on hosts that cannot.
	Beside Beside
	// Addrs returns the addresses at which RDMA over UDP can be done now; nil on
	// hosts without a network of their own.
	Addrs func() ([]netip.Addr, error)
	// Priority is the SO_PRIORITY by which the steering knows the gateway's own
	// sockets; 0: it needs none.
	Priority int
	// ID names the kernel: gateways with the same one can share memory.
	ID [16]byte

	// datagramAddr is the only address that is asked at the datagram port; zero:
	// all of them are.
	datagramAddr netip.Addr
	// faults are those that a test wants; nil: none.
	faults Faults
}

// Steering is the datapath below the gateway: who gets which segment. It is
// *ebpf.Datapath on a real host and a software model on in-memory hosts; its
// types and rules are those of package ebpf.
type Steering interface {
	Flow(t ebpf.Tuple) (ebpf.Flow, error)
	Transition(t ebpf.Tuple, isn uint32, to ebpf.State, from ...ebpf.State) error
	Delete(t ebpf.Tuple, isn uint32, from ...ebpf.State) error
	InjectApp(pkt []byte) error
	DestroySocket(t ebpf.Tuple) (bool, error)
	AppConnected(t ebpf.Tuple) (bool, error)
	ForgetTimeWait(t ebpf.Tuple) (bool, error)

	Heartbeat() error
	SetMode(m ebpf.Mode) error
	SetOff(off bool) error
	Refuse(reason uint8) error
	SetProofs(perSecond int) error
	Shed(reason uint8) error
	Lingering() (int, error)
	SetPolicy(rules []ebpf.Rule) error
	Sweep(l ebpf.SweepLimits) (int, error)
	Events(ctx context.Context, fn func(ebpf.Event)) error
	BlockedLegs() []ebpf.BlockedLegs
	ProveAgain()

	Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error
	Forget(addr netip.Addr, port uint16) error
	Peers() ([]ebpf.Peer, error)
	FlushPeers() (int, error)
	SetService(s ebpf.Service) error
	Services() ([]ebpf.Service, error)
	FlushServices() (int, error)
	Counters() (ebpf.Counters, error)
	MapUsage() ([]ebpf.MapUsage, error)
	Close() error
}

// Legs makes the sockets that face the local applications: non-blocking TCP
// sockets, or stand-ins on in-memory hosts, whose SO_LINGER is {1, 0}. A
// descriptor that a callback gets is the callee's to close.
type Legs interface {
	// Available reports whether sockets can be made; it does not wait.
	Available() bool
	// Listen accepts the connections whose SYN the gateway hands over; accept is
	// called for each, on the loop or on goroutines of the listener, and must not
	// block.
	Listen(on Loop, accept func(fd int, t Tuple)) (LegListener, error)
	// Dial begins to connect to the local application t.Local from t.Remote, the
	// client's own address, with a SYN that looks like the client's. It and cancel are called on the loop and do not block.
	// done is called once, on the loop, after Dial has returned and unless it was
	// cancelled.
	Dial(on Loop, t Tuple, like Look, done func(fd int, err error)) (cancel func())
}

// LegListener accepts app legs on a client host.
type LegListener interface {
	// Arrived accepts what waits and then calls then, on a loop or goroutine of the
	// listener's choice. It does not wait.
	Arrived(then func())
	// Close ends it; accept is not called any more.
	Close() error
}

// Loop is an event loop of the gateway.
type Loop interface {
	// Watch calls fn, on the loop, at each edge of a descriptor, with the events of
	// epoll. Unwatch ends that. Both are called on the loop.
	Watch(fd int, fn func(events uint32)) error
	Unwatch(fd int)
	// Post runs fn on the loop, soon. Call does and waits for it; it is not called on
	// the loop.
	Post(fn func())
	Call(fn func())
	// After calls fn on the loop, once, d from now, unless it is stopped. Both are
	// called on the loop.
	After(d time.Duration, fn func()) (stop func())
}
