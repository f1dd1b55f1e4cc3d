package host

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/ebpf/legs"
)

// Tuple identifies a TCP connection, as seen by the local application.
type Tuple struct {
	Local, Remote netip.AddrPort
}

// Steering is the datapath below the gateway, which decides which segments the gateway gets: *ebpf.Datapath, or an
// Unsteered. Package ebpf documents its types and rules.
type Steering interface {
	Entries

	// About new connections.
	Heartbeat() error
	SetMode(m ebpf.Mode) error
	SetOff(off bool) error
	Refuse(reason uint8) error
	SetProofs(perSecond int) error
	Shed(reason uint8) error
	SetPolicy(rules []ebpf.Rule) error
	SetRollout(r ebpf.Rollout) error
	SetCompare(on bool) error

	// About what happens, and what is left.
	Events(ctx context.Context, fn func(ebpf.Event)) error
	Sweep(l ebpf.SweepLimits) (int, error)
	Lingering() (int, error)
	BlockedLegs() []ebpf.BlockedLegs
	ProveAgain()
	Counters() (ebpf.Counters, error)
	TakeSeen() ([]ebpf.Seen, error)
	TakeCompared() ([]ebpf.Compared, error)
	MapUsage() ([]ebpf.MapUsage, error)

	// About peers.
	Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error
	Forget(addr netip.Addr, port uint16) error
	Peers() ([]ebpf.Peer, error)
	FlushPeers() (int, error)

	Close() error
}

// Entries is the part of [Steering] that acts on single connections.
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

// Legs makes the sockets that face local applications: non-blocking TCP sockets whose SO_LINGER is {1, 0}. A callback
// owns the descriptor that it is passed.
type Legs interface {
	// Available reports whether sockets can be made. It does not block.
	Available() bool
	// Note returns a sentence about the sockets for operators; "" if there is nothing to say.
	Note() string
	// Listen accepts the connections whose SYN the gateway hands over. It calls accept for each, on the loop or on
	// goroutines of the listener; accept must not block.
	Listen(on Loop, accept func(fd int, t Tuple)) (LegListener, error)
	// Dial begins to connect to the local application at t.Local from t.Remote, the client's own address, with a SYN
	// that looks like the client's. Dial and the methods of the result are called on the loop and do not block. done is
	// called once, on the loop, after Dial has returned, unless the dial was canceled or recalled before.
	Dial(on Loop, t Tuple, like Look, done func(fd int, err error)) Dialling
}

// Dialling is a dial in progress.
type Dialling interface {
	// Cancel ends the dial. A connection that it has made is reset.
	Cancel()
	// Recall ends the dial if the application has not accepted the connection, and never will. It returns false if the
	// dial has its own outcome by now, which done reports. The caller ensures that no packet of the dial passes
	// meanwhile.
	Recall() bool
}

// LegListener accepts app legs on a client host.
type LegListener interface {
	// Arrived accepts the connections that wait and then calls then, on a loop or goroutine of the listener's choice.
	// It does not block.
	Arrived(then func())
	// Close closes the listener. accept is not called after it.
	Close() error
}

// Loop is an event loop of the gateway.
type Loop interface {
	// Watch calls fn on the loop at each edge of a descriptor, with its epoll events, until Unwatch. Call both on the
	// loop.
	Watch(fd int, fn func(events uint32)) error
	Unwatch(fd int)
	// Post runs fn on the loop soon. Call runs it there and waits for it; it must not be called on the loop.
	Post(fn func())
	Call(fn func())
	// After calls fn on the loop once, after d, unless stop is called before. Call both on the loop.
	After(d time.Duration, fn func()) (stop func())
}

// Beside is the part of the datapath by which two gateways share a host while one takes over from the other. It is
// *ebpf.Datapath, or an Unsteered; package ebpf documents its rules.
type Beside interface {
	Neighbour() (ebpf.Neighbour, error)
	HasNeighbour() bool
	Retire() error
	Activate() error
}

// Look is what a packet's IP header shows of its origin. Gateway sockets imitate it, for applications that inspect it:
// IP_MINTTL (RFC 5082), filters, TCP_SAVE_SYN. The zero value stands for no packet.
type Look struct {
	TTL, TOS uint8
}

// LookOf reads the IP header of a raw packet.
func LookOf(pkt []byte) Look {
	switch {
	case len(pkt) >= 20 && pkt[0]>>4 == 4:
		return Look{TTL: pkt[8], TOS: pkt[1]}
	case len(pkt) >= 40 && pkt[0]>>4 == 6:
		return Look{TTL: pkt[7], TOS: pkt[0]<<4 | pkt[1]>>4}
	default:
		return Look{}
	}
}

// Near returns the TTL that the packet would have left if its sender had begun with 255. It assumes that a sender
// begins with 64, 128 or 255, which is true as long as paths are shorter than that.
func (l Look) Near() uint8 {
	switch {
	case l.TTL == 0:
		return legs.Farthest
	case l.TTL <= 64:
		return legs.Farthest - (64 - l.TTL)
	case l.TTL <= 128:
		return legs.Farthest - (128 - l.TTL)
	default:
		return l.TTL
	}
}

// ecnBits are the bits of TOS that belong to the transport.
const ecnBits = 3

// Dress sets TTL and TOS of an unconnected socket to those of the packet.
func (l Look) Dress(fd int, v6 bool) error {
	if l == (Look{}) {
		return nil
	}
	ttl, tos := int(l.TTL), int(l.TOS&^ecnBits)
	if v6 {
		return errors.Join(legs.SetHops(fd, v6, ttl), unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TCLASS, tos))
	}
	return errors.Join(legs.SetHops(fd, v6, ttl), unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TOS, tos))
}
