package negotiate

import (
	"strconv"
	"time"
)

// Action is one thing the owner of a handshake has to do, in the order given: one of Send, HandOver, HandOverAgain, Prove,
// Serve, Dial, Undial, Drop, DialRaw, RelayRaw, Forward, Carry, Records, Release, Abort.
type Action interface{ action() }

type (
	// Send writes Bytes to the wire leg.
	Send struct{ Bytes []byte }

	// HandOver (client) gives the application's recorded SYN to the gateway's listener. Answer with Client.AppAccepted
	// when accept() returned the connection, or Client.AppFailed. Accept is the server's ACCEPT.
	HandOver struct{ Accept *Accept }

	// HandOverAgain (client): accept() has not returned in time. Where the application still waits for the answer to its SYN
	// and that was lost, hand it over once more; where it has given up, Client.AppFailed.
	HandOverAgain struct{}

	// Prove (client) connects the queue pair made for Offer.Kind to the server's endpoint and runs the carrier proof
	// within Timeout. Answer with Client.Proved; a warm queue pair answers true at once. A failed proof is also for the
	// peer cache (carrier_unreachable).
	Prove struct {
		Offer   CarrierOffer
		Timeout time.Duration
	}

	// Serve (server) examines the PROPOSAL in the order policy and limits, memory and queue pairs. Answer with
	// Server.Reserved or Server.Refused. Proposal.Carriers is what the client offers.
	Serve struct{ Proposal *Proposal }

	// Dial (server) dials the application from the client's address, last of all, because it sees that. Answer with
	// Server.Dialled.
	Dial struct{}

	// Undial (server) gives the dial up if it is known that the application has not accepted it and never will; then answer
	// with Server.Dialled that it failed. Otherwise the dial has succeeded, and its result comes.
	Undial struct{}

	// Drop (server) frees what Serve reserved; no dial is under way. The wire leg stays, so that the client can read the
	// DECLINE; an Abort follows.
	Drop struct{}

	// DialRaw (server): the client is native; dial the application from the client's address. Answer with
	// Server.RawDialled. Waited is not zero where nothing has shown that it is: Verdict.Waited.
	DialRaw struct{ Waited time.Duration }

	// RelayRaw (server): both legs are native TCP byte streams. Pump application to wire at once; wire to application goes
	// on through Server.Receive until a Forward with Last.
	RelayRaw struct{}

	// Forward (server) writes Bytes, which the client sent, to the application. After Last the guard is done: pump the
	// wire leg to the application directly.
	Forward struct {
		Bytes []byte
		Last  bool
	}

	// Carry starts carrying by Carrier; queue pairs of other carriers are closed. The peer's ACCEPT or PROPOSAL was given
	// by HandOver or Serve. The wire leg may be written (records) from here on.
	Carry struct{ Carrier CarrierKind }

	// Records hands the receiving side of the wire leg to the record reader; Rest are the next bytes for it.
	Records struct{ Rest []byte }

	// Release (client) resets the wire leg and, after the RST in the same queue, sends the application's SYN out again,
	// bare: the kernel, the network and the peer's application give the true answer.
	Release struct{ Verdict Verdict }

	// Abort ends the wire leg and the application's leg, if there is one, and frees what was reserved. With Silent no
	// packet may leave on the wire leg: either the peer has ended it already, or a RST could be taken for the answer to
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
	OutcomeDeclined                // server: one of the two declined; the client goes on natively
	OutcomeRaw                     // server: the client is native, bytes are relayed untouched
	OutcomeAborted                 // both legs ended
)

// String returns the outcome's name.
func (o Outcome) String() string {
	switch o {
	case OutcomeNone:
		return "none"
	case OutcomeCarried:
		return "carried"
	case OutcomeReleased:
		return "released"
	case OutcomeDeclined:
		return "declined"
	case OutcomeRaw:
		return "raw"
	case OutcomeAborted:
		return "aborted"
	}
	return "outcome_" + strconv.Itoa(int(o))
}

// Verdict is the result of a handshake.
type Verdict struct {
	Outcome Outcome
	// Carrier is valid when Outcome is OutcomeCarried.
	Carrier CarrierKind
	// Reason is ReasonNone when carried by RDMA, ReasonCarrierUnreachable when carried by the relay from the start.
	Reason Reason
	// Remote is true when the peer decided.
	Remote bool
	// Shown is true when this host decided by what the peer has sent, whenever that came.
	Shown bool
	// Waited is not zero when this host decided because something of the peer had not come for so long, or the peer may
	// have for such a reason. That is about the peer only if this host was in time itself.
	Waited time.Duration
}

// Confirmed is what the third ACK of a connection said about the client.
type Confirmed uint8

// What a server knows when the third ACK has arrived.
const (
	// ConfirmedUnknown: nothing was seen yet that would tell, for instance because the third ACK was lost.
	ConfirmedUnknown Confirmed = iota
	// ConfirmedYes: the confirm option with the right nonce: a gateway speaks.
	ConfirmedYes
	// ConfirmedNo: a segment starting at ISN+1 without it: the client is native.
	ConfirmedNo
)

// String returns yes, no or unknown.
func (c Confirmed) String() string {
	switch c {
	case ConfirmedYes:
		return "yes"
	case ConfirmedNo:
		return "no"
	case ConfirmedUnknown:
	}
	return "unknown"
}
