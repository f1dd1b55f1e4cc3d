package ebpf

import "fmt"

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
