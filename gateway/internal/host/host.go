package host

import (
	"context"
	"net/netip"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

// Tuple names a TCP connection in the local application's direction.
type Tuple struct {
	Local, Remote netip.AddrPort
}

// Steering is the datapath below the gateway: it decides which segments the gateway
// gets. It is *ebpf.Datapath on a real host and a software model on in-memory hosts;
// its types and rules are those of package ebpf.
type Steering interface {
	Entries
	switches
	watching
	remembering
	Close() error
}

// Entries is the part of [Steering] that changes what becomes of one connection.
type Entries interface {
	Flow(t ebpf.Tuple) (ebpf.Flow, error)
	Transition(t ebpf.Tuple, isn uint32, to ebpf.State, from ...ebpf.State) error
	Delete(t ebpf.Tuple, isn uint32, from ...ebpf.State) error
	InjectApp(pkt []byte) error
	DestroySocket(t ebpf.Tuple) (bool, error)
	LegWaits(t ebpf.Tuple) (bool, error)
	ForgetTimeWait(t ebpf.Tuple) (bool, error)
	ForgetRequest(t ebpf.Tuple) (bool, error)
}

// switches is the part of [Steering] that decides about new connections.
type switches interface {
	Heartbeat() error
	SetMode(m ebpf.Mode) error
	SetOff(off bool) error
	Refuse(reason uint8) error
	SetProofs(perSecond int) error
	Shed(reason uint8) error
	SetPolicy(rules []ebpf.Rule) error
	SetRollout(r ebpf.Rollout) error
	SetCompare(on bool) error
}

// watching is the part of [Steering] that tells what happens, and cleans up.
type watching interface {
	Events(ctx context.Context, fn func(ebpf.Event)) error
	Sweep(l ebpf.SweepLimits) (int, error)
	Lingering() (int, error)
	BlockedLegs() []ebpf.BlockedLegs
	ProveAgain()
	Counters() (ebpf.Counters, error)
	TakeSeen() ([]ebpf.Seen, error)
	TakeCompared() ([]ebpf.Compared, error)
	MapUsage() ([]ebpf.MapUsage, error)
}

// remembering is the part of [Steering] that knows peers.
type remembering interface {
	Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error
	Forget(addr netip.Addr, port uint16) error
	Peers() ([]ebpf.Peer, error)
	FlushPeers() (int, error)
}

// Legs makes the sockets that face the local applications: non-blocking TCP
// sockets, or stand-ins on in-memory hosts, whose SO_LINGER is {1, 0}. A
// descriptor that a callback gets is the callee's to close.
type Legs interface {
	// Available reports whether sockets can be made; it does not wait.
	Available() bool
	// Note is a sentence about sockets for operators, "" when there is nothing to say.
	Note() string
	// Listen accepts the connections whose SYN the gateway hands over; accept is
	// called for each, on the loop or on goroutines of the listener, and must not
	// block.
	Listen(on Loop, accept func(fd int, t Tuple)) (LegListener, error)
	// Dial begins to connect to the local application t.Local from t.Remote, the
	// client's own address, with a SYN that looks like the client's. It and the methods
	// of what it returns are called on the loop and do not block. done is called once, on
	// the loop, after Dial has returned and unless the dial was ended.
	Dial(on Loop, t Tuple, like Look, done func(fd int, err error)) Dialling
}

// Dialling is a dial that is under way.
type Dialling interface {
	// Cancel ends it. A connection that it has made is reset.
	Cancel()
	// Recall ends it if the application has not accepted it, and never will. False: it
	// has an end of its own by now, of which done tells. The caller sees to it that no
	// packet of it passes meanwhile.
	Recall() bool
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

// Beside is the part of the datapath by which two gateways share a host while one
// takes over from the other. It is *ebpf.Datapath on a real host; its rules are
// those of package ebpf.
type Beside interface {
	Neighbour() (ebpf.Neighbour, error)
	HasNeighbour() bool
	Retire() error
	Activate() error
}
