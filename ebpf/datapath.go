package ebpf

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"
)

var (
	// ErrNoFlow: there is no entry for the tuple.
	ErrNoFlow = errors.New("no flow entry")
	// ErrReplaced: the entry belongs to another connection on the same tuple
	// (its ISN differs).
	ErrReplaced = errors.New("flow entry of another connection")
	// ErrState: the entry is in none of the expected states. The error is a
	// [StateError].
	ErrState = errors.New("flow entry in another state")
	// ErrKernel: the kernel is older than 6.6 or lacks a needed feature.
	ErrKernel = errors.New("kernel lacks a needed feature")
	// ErrCollision: a rule preference or routing table is used by others.
	ErrCollision = errors.New("rule preference or table in use")
	// ErrInUse: a live process holds the devices of this generation.
	ErrInUse = errors.New("devices held by a live process")
)

// Datapath is the attached kernel side. Its methods may be called from any
// goroutine; Close waits for those that run.
type Datapath struct{}

// Open creates the TUN devices, rules and maps and attaches all programs in the
// network namespace of the calling thread, sockops last. No offer is made
// before the first [Datapath.Heartbeat].
func Open(cfg Config) (*Datapath, error) { return nil, errors.ErrUnsupported }

// Close detaches everything in reverse order and removes rules, routes and
// devices. It is idempotent.
func (d *Datapath) Close() error { return errors.ErrUnsupported }

// AppTUN returns the descriptor of A. It stays owned by d. Nothing needs to be
// read from it.
func (d *Datapath) AppTUN() int { return -1 }

// WireTUN returns the descriptor of W for netstack: IFF_NO_PI, virtio net
// header of 10 bytes, offloads CSUM, TSO4 and TSO6, non-blocking. It stays owned
// by d.
func (d *Datapath) WireTUN() int { return -1 }

// AppName returns the name of A, to which gateway sockets are bound.
func (d *Datapath) AppName() string { return "" }

// AppIndex returns the interface index of A.
func (d *Datapath) AppIndex() int { return 0 }

// WireMTU returns the MTU of W, the smallest of the offer devices.
func (d *Datapath) WireMTU() int { return 0 }

// NativeReason returns the reason why all connections stay native in this
// configuration (42, rp_filter), or 0.
func (d *Datapath) NativeReason() uint8 { return 0 }

// InjectApp writes a SYN to A: pkt is a raw IP packet of at most 128 bytes, whose
// TCP checksum is computed here. What happens to it depends on the state of its
// flow: completing (to the listener), released (to the wire) or returned (to the
// kernel as received); anything else is dropped and counted.
func (d *Datapath) InjectApp(pkt []byte) error { return errors.ErrUnsupported }

// SetListener makes the transparent listeners of the gateway the target of SYNs
// of completing flows. Each is a TCP (not MPTCP) socket bound to A; v6 may be
// negative where the kernel has no IPv6.
func (d *Datapath) SetListener(v4, v6 int) error { return errors.ErrUnsupported }

// Heartbeat tells the programs that the gateway lives.
func (d *Datapath) Heartbeat() error { return errors.ErrUnsupported }

// SetMode changes the mode for new connections.
func (d *Datapath) SetMode(m Mode) error { return errors.ErrUnsupported }

// SetOff sets or clears the off switch for new connections.
func (d *Datapath) SetOff(off bool) error { return errors.ErrUnsupported }

// SetPolicy replaces the policy in one step: every connection is decided by the
// old one or by the new one.
func (d *Datapath) SetPolicy(rules []Rule) error { return errors.ErrUnsupported }

// Flow is a copy of a flow entry.
type Flow struct {
	Tuple Tuple
	State State
	Side  Side
	// ISN of the connection's SYN, from whichever side it came.
	ISN uint32
	// Nonce of the offer.
	Nonce uint16
	// Ifindex is the wire device of the flow.
	Ifindex int
	// Rule is the index of the rule that selected the flow.
	Rule int
	// Acked: server, an ACK from the client followed the SYN.
	Acked bool
	// OfferedAt and ChangedAt are on the kernel's monotonic clock.
	OfferedAt, ChangedAt time.Duration
	// SYN is the recorded SYN with IP and TCP headers as it left (client), with
	// the offer and with a checksum that may be incomplete. Empty on the server.
	SYN []byte
}

// Flow returns a copy of the entry of t, or ErrNoFlow.
func (d *Datapath) Flow(t Tuple) (Flow, error) { return Flow{}, errors.ErrUnsupported }

// Flows calls fn for every entry; entries that change meanwhile may be missed.
func (d *Datapath) Flows(fn func(Flow) bool) error { return errors.ErrUnsupported }

// Transition moves the entry of t to state to if it belongs to the connection
// with this ISN and is in one of the states from. The compare and the swap are
// one step also against the programs. Errors: ErrNoFlow, ErrReplaced, ErrState.
func (d *Datapath) Transition(t Tuple, isn uint32, to State, from ...State) error {
	return errors.ErrUnsupported
}

// Delete removes the entry of t if it belongs to the connection with this ISN.
func (d *Datapath) Delete(t Tuple, isn uint32) error { return errors.ErrUnsupported }

// StateError is the error of a Transition from another state than expected.
type StateError struct{ Have State }

// Error implements error.
func (e *StateError) Error() string { return "flow entry in state " + e.Have.String() }

// Unwrap returns ErrState.
func (e *StateError) Unwrap() error { return ErrState }

// SweepLimits are the ages after which Sweep deletes entries; zero means the
// default.
type SweepLimits struct {
	Offered, Wire, Released, Returned, Dead time.Duration
}

// Sweep deletes stale entries and returns how many.
func (d *Datapath) Sweep(l SweepLimits) (int, error) { return 0, errors.ErrUnsupported }

// Peer is what is remembered about a destination (client) or source (server).
type Peer struct {
	// Addr and Port name the peer; port 0 is the whole address.
	Addr netip.Addr
	Port uint16
	// Reason is why it is left alone.
	Reason uint8
	// TTL is how long it still is left alone; 0 = it only has a count.
	TTL time.Duration
	// Count is the number of eaten options in a row, Backoff the number of
	// times it was blackholed.
	Count, Backoff int
}

// Remember leaves a peer alone for ttl: offers to it are withheld, and for
// reason accept_lost also its offers are not accepted. An entry of the same
// address and port is overwritten.
func (d *Datapath) Remember(addr netip.Addr, port uint16, reason uint8, ttl time.Duration) error {
	return errors.ErrUnsupported
}

// Forget removes one remembered peer.
func (d *Datapath) Forget(addr netip.Addr, port uint16) error { return errors.ErrUnsupported }

// Peers lists the remembered peers, also expired ones that still have a count.
func (d *Datapath) Peers() ([]Peer, error) { return nil, errors.ErrUnsupported }

// FlushPeers forgets all peers and returns how many there were.
func (d *Datapath) FlushPeers() (int, error) { return 0, errors.ErrUnsupported }

// Events calls fn for every event until ctx ends or d is closed. Native
// decisions are collected every 100 ms, replaced flows at once. One call at a
// time.
func (d *Datapath) Events(ctx context.Context, fn func(Event)) error {
	return errors.ErrUnsupported
}

// Counters is a snapshot since Open.
type Counters struct {
	// Native counts native decisions by side and reason.
	Native [2]map[uint8]uint64
	// Stats counts what the programs did otherwise, by name.
	Stats map[string]uint64
}

// Counters reads the counters.
func (d *Datapath) Counters() (Counters, error) { return Counters{}, errors.ErrUnsupported }

// MapUsage is the fill level of a map.
type MapUsage struct {
	Name              string
	Entries, Capacity int
}

// MapUsage counts the entries of the bounded maps; it walks them.
func (d *Datapath) MapUsage() ([]MapUsage, error) { return nil, errors.ErrUnsupported }

// DestroySocket destroys a stale gateway socket (mostly TIME_WAIT) of a flow:
// bound to A, with local address t.Remote and remote address t.Local. It reports
// whether there was one.
func (d *Datapath) DestroySocket(t Tuple) (bool, error) { return false, errors.ErrUnsupported }

// Handover is what a guardian holds. The files are duplicates; close them.
type Handover struct {
	Heartbeat *os.File
	// Hold are the TUN devices and all links but those that make offers.
	Hold []*os.File
}

// Handover duplicates the descriptors for a guardian. Links attached later to
// new devices are not among them.
func (d *Datapath) Handover() (Handover, error) { return Handover{}, errors.ErrUnsupported }

// Close closes all files of the handover.
func (h Handover) Close() error { return errors.ErrUnsupported }

// StopHeartbeat makes the gateway count as gone at once; for the guardian, with
// the heartbeat map it was handed.
func StopHeartbeat(heartbeat *os.File) error { return errors.ErrUnsupported }

// Cleanup removes rules and routes of a gateway that is gone. It is idempotent
// and needs no daemon; ErrInUse if one is alive.
func Cleanup(cfg Config) error { return errors.ErrUnsupported }
