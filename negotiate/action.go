package negotiate

import (
	"time"
)

// Action is one thing that the owner of a handshake must do: Send, HandOver, HandOverAgain, Prove, Serve, Dial, Undial,
// Drop, DialRaw, RelayRaw, Forward, Carry, Records, Release or Abort. Actions are executed in the order in which they
// were returned.
type Action interface{ action() }

type (
	// Send writes Bytes to the wire leg.
	Send struct{ Bytes []byte }

	// HandOver (client) hands the application's recorded SYN to the gateway's listener. Answer with Client.AppAccepted
	// when accept() has returned the connection, or with Client.AppFailed. Accept is the server's ACCEPT.
	HandOver struct{ Accept *Accept }

	// HandOverAgain (client) says that accept() has not returned in time. If the application is still waiting for a
	// SYN-ACK that was lost, hand its SYN over once more. If it has given up, answer with Client.AppFailed.
	HandOverAgain struct{}

	// Prove (client) connects the queue pair made for Offer.Kind to the server's endpoint and runs the carrier proof
	// within Timeout. Answer with Client.Proved, immediately if the carrier needs no proof. Record a failed proof in
	// the peer cache, too (carrier_unreachable).
	Prove struct {
		Offer   CarrierOffer
		Timeout time.Duration
	}

	// Serve (server) examines the PROPOSAL: first policy and limits, then memory, then queue pairs. Answer with
	// Server.Reserved or Server.Refused. Proposal.Carriers is what the client offers.
	Serve struct{ Proposal *Proposal }

	// Dial (server) dials the application from the client's address. It comes last because the application sees it.
	// Answer with Server.Dialled.
	Dial struct{}

	// Undial (server) gives up the dial if the application is known not to have accepted it and cannot accept it any
	// more; then answer with Server.Dialled and ok false. Otherwise the dial counts as successful and its result
	// follows as usual.
	Undial struct{}

	// Drop (server) frees what Serve reserved; no dial is in progress. The wire leg stays open so that the client can
	// read the DECLINE. An Abort follows.
	Drop struct{}

	// DialRaw (server) dials the application from the client's address for a native client. Answer with
	// Server.RawDialled. Waited is not zero if the client is merely assumed to be native; see Verdict.Waited.
	DialRaw struct{ Waited time.Duration }

	// RelayRaw (server) makes both legs native TCP byte streams. Pump from the application to the wire at once; bytes
	// from the wire keep going through Server.Receive until a Forward with Last.
	RelayRaw struct{}

	// Forward (server) writes Bytes, which the client sent, to the application. After Last the guard is done: pump the
	// wire leg to the application directly.
	Forward struct {
		Bytes []byte
		Last  bool
	}

	// Carry starts carrying by Carrier and closes the queue pairs of the other carriers. HandOver or Serve has provided
	// the peer's ACCEPT or PROPOSAL. From here on records may be written to the wire leg.
	Carry struct{ Carrier CarrierKind }

	// Records hands the receiving side of the wire leg to the record reader, starting with the bytes in Rest.
	Records struct{ Rest []byte }

	// Release (client) resets the wire leg and, behind the RST in the same queue, sends the application's SYN again
	// without the option. The kernel, the network and the peer's application then give the true answer.
	Release struct{ Verdict Verdict }

	// Abort ends the wire leg and the app leg, if there is one, and frees what was reserved. If Silent is set, no
	// packet may leave on the wire leg: either the peer has already ended it, or a RST could be taken for the answer to
	// the application's SYN. Otherwise the wire leg is reset.
	Abort struct {
		Verdict Verdict
		Silent  bool
	}
)

func (Send) action()          {}
func (HandOver) action()      {}
func (HandOverAgain) action() {}
func (Dial) action()          {}
func (Undial) action()        {}
func (Prove) action()         {}
func (Serve) action()         {}
func (Drop) action()          {}
func (DialRaw) action()       {}
func (RelayRaw) action()      {}
func (Forward) action()       {}
func (Carry) action()         {}
func (Records) action()       {}
func (Release) action()       {}
func (Abort) action()         {}

// Outcome is how a handshake ended.
type Outcome uint8

// The outcomes. A client ends Carried, Released or Aborted; a server Carried, Raw, Declined or Aborted.
const (
	OutcomeNone     Outcome = iota // not decided yet
	OutcomeCarried                 // carried by Verdict.Carrier
	OutcomeReleased                // client: the connection falls back
	OutcomeDeclined                // server: either side declined; the client continues natively
	OutcomeRaw                     // server: the client is native, its bytes are relayed untouched
	OutcomeAborted                 // both legs ended
)

// Verdict is the result of a handshake.
type Verdict struct {
	Outcome Outcome
	// Carrier is valid when Outcome is OutcomeCarried.
	Carrier CarrierKind
	// Reason is ReasonNone when carried by RDMA, ReasonCarrierUnreachable when carried by the relay from the start.
	Reason Reason
	// Remote reports whether the peer decided.
	Remote bool
	// Shown reports whether this host decided because of something the peer has sent, at whatever time.
	Shown bool
	// Waited is not zero if this host decided because it waited that long for the peer in vain, or if the peer may have
	// decided because it waited for this host. It says something about the peer only if this host was not late itself.
	Waited time.Duration
}

// Confirmed is what the third ACK of a connection tells about the client.
type Confirmed uint8

// What a server knows when the third ACK has arrived.
const (
	// ConfirmedUnknown: nothing that would tell has been seen yet, for instance because the third ACK was lost.
	ConfirmedUnknown Confirmed = iota
	// ConfirmedYes: the confirm option came with the right nonce, so the client is a gateway.
	ConfirmedYes
	// ConfirmedNo: a segment that starts at ISN+1 came without the option, so the client is native.
	ConfirmedNo
)

// Stage is how far a handshake has got. Its names are those of the states of a flow.
type Stage uint8

const (
	// StageAccepted: nothing has been sent or read.
	StageAccepted Stage = iota
	// StageNegotiating: the client has sent PROPOSAL; the server awaits or handles it.
	StageNegotiating
	// StageCompleting: ACCEPT was sent or read.
	StageCompleting
	// StageOver: there is a verdict.
	StageOver
)

// String returns the name of s.
func (s Stage) String() string {
	return [...]string{"accepted", "negotiating", "completing", "over"}[s]
}
