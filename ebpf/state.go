package ebpf

import "fmt"

// State is what the programs do with the segments of a flow. A flow without an
// entry is native.
//
//	client: offered ─┬─► negotiating ─┬─► completing ─► carrying ─► dead
//	                 └────────────────┴─► released (─► native)
//	server: wire ─┬─► serving ─► dead
//	              ├─► raw ─► dead
//	              └─► returned (─► native), also from serving, raw and dead: the client has begun again
//
// The programs make the first step (offered, wire, negotiating) and delete
// entries that ended natively; user space makes all others by
// [Datapath.Transition].
type State uint8

// The states. "Out" is what the local application's kernel sends, "in" what
// comes from the network, "wire" what netstack sends through W.
const (
	// StateNone: no entry.
	StateNone State = iota
	// StateOffered: the app's SYN left with an offer. Out and in are untouched;
	// the SYN-ACK decides.
	StateOffered
	// StateNegotiating: the accept arrived. In goes to W, the app's SYN
	// retransmissions are dropped while the heartbeat is fresh.
	StateNegotiating
	// StateCompleting: the recorded SYN may be given to the listener through A;
	// out is steered to A, in to W.
	StateCompleting
	// StateCarrying: as completing, but no SYN is accepted on A any more.
	StateCarrying
	// StateWire: server, the offered SYN was accepted; in goes to W, there is no
	// app leg yet.
	StateWire
	// StateServing: server with app leg: out to A, in to W.
	StateServing
	// StateRaw: as serving, for a client that turned out to be native.
	StateRaw
	// StateReleased: client, fell back, or an offered SYN that was sent again,
	// bare: a bare SYN may leave through A; in is dropped until a SYN-ACK without
	// our accept, or an RST, with ack = ISN+1.
	StateReleased
	// StateReturned: server, fell back: a SYN written to A is delivered to the
	// kernel as if it came from the wire, and the entry is deleted.
	StateReturned
	// StateDead: lingers after the end: in is dropped, except pure ACKs, which go
	// to W for an exact RST; out and A still reach each other for the last
	// segments of the app leg; a SYN deletes the entry.
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
