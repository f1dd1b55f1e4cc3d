package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	bpf "github.com/cilium/ebpf"
)

// Flow is a copy of a flow entry.
type Flow struct {
	// Tuple, State and Side are those of the connection.
	Tuple Tuple
	State State
	Side  Side
	// ISN is that of the connection's SYN, whichever side sent it.
	ISN uint32
	// Nonce is that of the offer.
	Nonce uint16
	// Rule is the index of the rule that selected the flow, or NoRule.
	Rule int
	// Spoken says that something the gateway has sent has left the host (client).
	Spoken bool
	// OfferedAt and ChangedAt are on the kernel's monotonic clock.
	OfferedAt, ChangedAt time.Duration
	// Age is how long the entry had been in its state when it was read.
	Age time.Duration
	// SYN is the recorded SYN with the IP and TCP headers with which it left (client), including the offer; its
	// checksum may be incomplete. Empty on the server.
	SYN []byte
}

// Bits of the word besides ISN (63..32), nonce (31..16) and state (7..0); see maps.h.
const (
	wordServer = 1 << 9
	wordSpoken = 1 << 14
)

// CAS operations and results, as in cas.h.
const (
	casMove = iota
	casDelete
	casWay
)

const (
	casOK = iota
	casNoFlow
	casReplaced
	casState
)

// allStates is the set of all states in which there is an entry.
const allStates = (1<<numStates - 1) &^ 1

// key returns the map key of a tuple.
func (t Tuple) key() (smcgwFlowKey, error) {
	var k smcgwFlowKey
	if !t.Local.IsValid() || !t.Remote.IsValid() {
		return k, fmt.Errorf("tuple %v: invalid address", t)
	}
	var remote uint8
	k.Laddr, k.Family = addr16(t.Local.Addr())
	k.Raddr, remote = addr16(t.Remote.Addr())
	if k.Family != remote {
		return k, fmt.Errorf("tuple %v: mixed address families", t)
	}
	k.Lport, k.Rport = wirePort(t.Local.Port()), wirePort(t.Remote.Port())
	return k, nil
}

// tuple is the inverse of Tuple.key.
func (k smcgwFlowKey) tuple() Tuple {
	return Tuple{
		Local:  netip.AddrPortFrom(addrFrom(k.Laddr, k.Family), wirePort(k.Lport)),
		Remote: netip.AddrPortFrom(addrFrom(k.Raddr, k.Family), wirePort(k.Rport)),
	}
}

// flow decodes an entry.
func (v *smcgwFlow) flow(k smcgwFlowKey) Flow {
	f := Flow{
		Tuple: k.tuple(), State: State(v.Word), ISN: uint32(v.Word >> 32), Nonce: uint16(v.Word >> 16),
		Spoken: v.Word&wordSpoken != 0,
		Rule:   ruleIndex(v.Rule), OfferedAt: time.Duration(v.OfferedAt), ChangedAt: time.Duration(v.ChangedAt),
	}
	if v.Word&wordServer != 0 {
		f.Side = SideServer
	}
	f.SYN = append(f.SYN, v.Syn[:min(int(v.SynLen), len(v.Syn))]...)
	return f
}

// ruleIndex converts a rule of the programs, including NO_RULE of maps.h.
func ruleIndex(r uint8) int {
	if r >= MaxRules {
		return NoRule
	}
	return int(r)
}

// Flow returns a copy of the entry of t, or ErrNoFlow.
func (d *Datapath) Flow(t Tuple) (Flow, error) {
	k, err := t.key()
	if err != nil {
		return Flow{}, err
	}
	if err := d.enter(); err != nil {
		return Flow{}, err
	}
	defer d.leave()
	var v smcgwFlow
	if err := d.objs.Flows.Lookup(&k, &v); err != nil { // a key passed by value would be marshalled by reflection
		if errors.Is(err, bpf.ErrKeyNotExist) {
			return Flow{}, ErrNoFlow
		}
		return Flow{}, fmt.Errorf("flow entry: %w", err)
	}
	if State(v.Word) == StateNone { // being deleted
		return Flow{}, ErrNoFlow
	}
	f := v.flow(k)
	f.Age = time.Duration(Now()) - f.ChangedAt
	return f, nil
}

// walkBatch is the number of entries read by one system call. It keeps the CPU time of a walk over 20,000 idle flows
// negligible.
const walkBatch = 1024

// walk visits the entries in batches without decoding them.
func (d *Datapath) walk(fn func(*smcgwFlowKey, *smcgwFlow) bool) error {
	keys, values := make([]smcgwFlowKey, walkBatch), make([]smcgwFlow, walkBatch)
	var at bpf.MapBatchCursor
	for {
		n, err := d.objs.Flows.BatchLookup(&at, keys, values, nil)
		for i := range n {
			if State(values[i].Word) != StateNone && !fn(&keys[i], &values[i]) {
				return nil
			}
		}
		if errors.Is(err, bpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("flow entries: %w", err)
		}
	}
}

// Transition moves the entry of t to state to if it belongs to the connection with this ISN and is in one of the states
// from (any state if none is given). Compare and swap are atomic with respect to the programs, too. It returns
// ErrNoFlow, ErrReplaced or ErrState.
func (d *Datapath) Transition(t Tuple, isn uint32, to State, from ...State) error {
	if to == StateNone || to >= numStates {
		return fmt.Errorf("transition to %v: %w", to, ErrState)
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.cas(t, smcgwCasArgs{Isn: isn, Op: casMove, To: uint8(to), From: stateSet(from)})
}

// Delete removes the entry of t if it belongs to the connection with this ISN and is in one of the states from (any
// state if none is given). It returns the same errors as Transition.
func (d *Datapath) Delete(t Tuple, isn uint32, from ...State) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.cas(t, smcgwCasArgs{Isn: isn, Op: casDelete, From: stateSet(from)})
}

// stateSet returns the bit set of states, or of all states if there are none.
func stateSet(states []State) uint32 {
	if len(states) == 0 {
		return allStates
	}
	var set uint32
	for _, s := range states {
		set |= 1 << s
	}
	return set &^ 1
}

// cas runs the compare-and-swap program.
func (d *Datapath) cas(t Tuple, a smcgwCasArgs) (err error) {
	if a.Key, err = t.key(); err != nil {
		return err
	}
	if err := d.runCAS(&a); err != nil {
		return err
	}
	switch a.Result {
	case casOK:
		return nil
	case casNoFlow:
		return ErrNoFlow
	case casReplaced:
		return ErrReplaced
	default:
		return &StateError{Have: State(a.Have)}
	}
}

// StateError is the error of a Transition from an unexpected state.
type StateError struct{ Have State }

// Error implements error.
func (e *StateError) Error() string { return "flow entry in state " + e.Have.String() }

// Unwrap returns ErrState.
func (e *StateError) Unwrap() error { return ErrState }

// SweepLimits are the ages after which Sweep deletes entries; zero means the default. Entries in states without a limit
// belong to user space.
type SweepLimits struct {
	// Offered is the limit without an answer. Default: 10s. A retransmission releases the entry after one second, so
	// only abandoned connections get that old.
	Offered time.Duration
	// Released, Returned and Dead are limits since the entry entered that state. Default: 5s.
	Released, Returned, Dead time.Duration
	// Waiting is the age from which Sweep calls Stuck, after it has deleted entries, for entries whose connection waits
	// for a step of user space: those in negotiating, completing and wire. If a segment was lost on its way to user
	// space, only Stuck tells user space about the entry. Default: 30s.
	Waiting time.Duration
	Stuck   func(Flow) // may be nil
}

// limit returns the maximum age in a state, or 0 for states that do not age.
func (l SweepLimits) limit(s State) time.Duration {
	pick := orDefault
	switch s {
	case StateOffered:
		return pick(l.Offered, 10*time.Second)
	case StateReleased:
		return pick(l.Released, 5*time.Second)
	case StateReturned:
		return pick(l.Returned, 5*time.Second)
	case StateDead:
		return pick(l.Dead, 5*time.Second)
	default:
		return 0
	}
}

func orDefault(v, def time.Duration) time.Duration {
	if v > 0 {
		return v
	}
	return def
}

// waiting returns the age from which an entry in a state is stuck, or 0 for states that do not wait for user space.
func (l SweepLimits) waiting(s State) time.Duration {
	if l.Stuck != nil && (s == StateNegotiating || s == StateCompleting || s == StateWire) {
		return orDefault(l.Waiting, 30*time.Second)
	}
	return 0
}

// Sweep deletes stale entries and returns how many. It also lets traces of entries that are gone expire, so call it
// every second or so. It keeps an entry that has changed since it was read.
func (d *Datapath) Sweep(l SweepLimits) (int, error) {
	n, stuck, err := d.sweep(l)
	for _, f := range stuck {
		l.Stuck(f)
	}
	return n, err
}

func (d *Datapath) sweep(l SweepLimits) (n int, stuck []Flow, err error) {
	if err := d.enter(); err != nil {
		return 0, nil, err
	}
	defer d.leave()
	now := time.Duration(Now())
	var stale []Flow
	err = d.traces.renew(func(found func(*smcgwFlowKey)) error {
		return d.walk(func(k *smcgwFlowKey, v *smcgwFlow) bool {
			found(k)
			if age := l.limit(State(v.Word)); age > 0 && now-time.Duration(v.ChangedAt) > age {
				stale = append(stale, v.flow(*k))
			} else if age := l.waiting(State(v.Word)); age > 0 && now-time.Duration(v.ChangedAt) > age {
				stuck = append(stuck, v.flow(*k))
			}
			return true
		})
	})
	for _, f := range stale {
		e := d.cas(f.Tuple, smcgwCasArgs{Isn: f.ISN, Op: casDelete, From: stateSet([]State{f.State})})
		if e == nil {
			n++
		} else if !errors.Is(e, ErrNoFlow) && !errors.Is(e, ErrReplaced) && !errors.Is(e, ErrState) {
			err = errors.Join(err, e)
		}
	}
	return n, stuck, err
}

// Tuple identifies a TCP connection as seen from the local application, on either host: Local is the address of the
// application on this host. IPv4 is always unmapped.
type Tuple struct {
	Local, Remote netip.AddrPort
}

// String returns "local -> remote".
func (t Tuple) String() string { return fmt.Sprintf("%v -> %v", t.Local, t.Remote) }

// Family numbers of the maps. IPv4 addresses take the first four of the sixteen bytes, so a v4-mapped socket and an
// IPv4 packet have the same key.
const (
	family4 = 4
	family6 = 6
)

// addr16 returns an address in the form that the maps hold, and its family.
func addr16(a netip.Addr) (b [16]byte, family uint8) {
	a = a.Unmap()
	if a.Is4() {
		v4 := a.As4()
		copy(b[:], v4[:])
		return b, family4
	}
	return a.As16(), family6
}

// addrFrom is the inverse of addr16.
func addrFrom(b [16]byte, family uint8) netip.Addr {
	if family == family4 {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16(b)
}

// wirePort returns a port in network byte order, as the programs find it in headers, in a field that Go sees as a
// native integer.
func wirePort(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}

// State decides what the programs do with the segments of a flow (the table is in verdict.h). A flow without an entry
// is native.
//
//	client: offered ─┬─► negotiating ─┬─► completing ─► carrying ─► dead
//	                 └────────────────┴─► released (─► native)
//	server: wire ─┬─► serving ─► dead
//	              ├─► raw ─► dead
//	              └─► returned (─► native), also from serving, raw and dead: the client has begun again
//
// The programs make the first step (offered, wire, negotiating), release offers that were refused, repeated or answered
// too late, and delete entries of connections that became native. User space makes all other steps by
// [Datapath.Transition].
type State uint8

// The states. "Out" is what the local application's kernel sends, and "in" is what comes from the network.
const (
	// StateNone: no entry.
	StateNone State = iota
	// StateOffered: the application's SYN left with an offer. Out and in pass; the SYN-ACK decides.
	StateOffered
	// StateNegotiating: the accept has arrived. In goes to the wire TUN. Retransmissions of the application's SYN are
	// dropped, unless the gateway is late or the negotiation overdue.
	StateNegotiating
	// StateCompleting: the recorded SYN may be given to the listener through the app TUN. Out goes to the legs, in to
	// the wire TUN.
	StateCompleting
	// StateCarrying: as completing, but the listener gets no SYN any more.
	StateCarrying
	// StateWire: server, the offered SYN was accepted. In goes to the wire TUN; there is no app leg yet.
	StateWire
	// StateServing: server with an app leg. Out goes to the legs, in to the wire TUN.
	StateServing
	// StateRaw: as serving, for a client that turned out to be native.
	StateRaw
	// StateReleased: client, fell back, or sent an offered SYN again without the option. A SYN without option may leave
	// through the app TUN. In is dropped until the answer to that SYN comes: a SYN-ACK without our accept, or a reset,
	// with acknowledgement ISN+1.
	StateReleased
	// StateReturned: server, fell back. A SYN written to the app TUN is delivered to the kernel as if it came from the
	// wire, and the entry is deleted.
	StateReturned
	// StateDead: the flow has ended. In is dropped, except pure ACKs, which go to the wire TUN for an exact reset. Out
	// and the legs still reach each other for the last segments of the app leg. A SYN deletes the entry.
	StateDead

	numStates
)

var stateNames = [numStates]string{
	"none", "offered", "negotiating", "completing", "carrying", "wire",
	"serving", "raw", "released", "returned", "dead",
}

// String returns the lower-case name.
func (s State) String() string {
	if s < numStates {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Side says which application of a connection is on this host.
type Side uint8

// The sides.
const (
	SideClient Side = iota
	SideServer
)

// String returns "client" or "server".
func (s Side) String() string {
	if s == SideServer {
		return "server"
	}
	return "client"
}
