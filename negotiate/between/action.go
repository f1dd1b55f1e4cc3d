package between

import "github.com/smcgw/smcgw/negotiate"

// Action is one thing that the owner of a Control must do: Greeted, Find, Prove, Carry, Tell, TellPlace, Ask,
// PeerEnded, Lose or Closed. Actions are executed in the order in which they were returned. After each event the owner
// also writes what [Control.Pending] returns.
type Action interface{ action() }

type (
	// Greeted says that the peer has answered. From now on the side that opened the control connection may offer.
	Greeted struct{ Peer Hello }

	// Find (server) asks the broker for the end with the Name of Offer, which has at least one carrier. Answer within
	// 60 s: with Control.Answer once the broker has answered and links are made, or with Control.Decline.
	Find struct {
		Number uint64
		Offer  Offer
	}

	// Prove (client) proves one of the carriers, all of which were offered. Answer with Control.Proved or
	// Control.Decline. Order is the largest that the next OFFER should have.
	Prove struct {
		Number   uint64
		Carriers []negotiate.CarrierOffer
		Order    uint8
	}

	// Carry says that both sides have agreed: the ends may begin, and their libraries may attach.
	Carry struct {
		Number  uint64
		Carrier negotiate.CarrierKind
	}

	// Tell sets the flags of the mirror to what the peer's library has said. Flags are never cleared.
	Tell struct {
		Number           uint64
		Attached, Recall bool
	}

	// TellPlace records in the mirror where the peer's library is in the kernel's stream. Latest says that this answers
	// the latest Control.Where, Last that the library will not open its direction any more.
	TellPlace struct {
		Number       uint64
		Place        Place
		Latest, Last bool
	}

	// Ask requests the place of the local library. Answer with Control.Opened.
	Ask struct{ Number uint64 }

	// PeerEnded is the last action for a number. Either the peer's process has Exited after it had put Written bytes
	// into its ring, and read one byte less than Read, if that is not 0, or its library has left the ring in both
	// directions.
	PeerEnded struct {
		Number        uint64
		Exited        bool
		Written, Read uint64
	}

	// Lose says that the carrier of a number has ended, or that there will be none: stop sending and mark its mirror
	// GONE. Remote says that the peer decided. Over says that this is the last action for the number; otherwise the owner
	// must call Control.Decline and Opened when the mirror has GONE, and in the end Control.Exited or Control.Left.
	Lose struct {
		Number uint64
		Reason negotiate.Reason
		Remote bool
		Over   bool
	}

	// Closed is the last action: close the TCP connection after writing what is pending, if that does not block. Lose
	// has come for every number. ReasonNone means that the connection was idle for a while.
	Closed struct {
		Reason negotiate.Reason
		Remote bool
	}
)

func (Greeted) action()   {}
func (Find) action()      {}
func (Prove) action()     {}
func (Carry) action()     {}
func (Tell) action()      {}
func (TellPlace) action() {}
func (Ask) action()       {}
func (PeerEnded) action() {}
func (Lose) action()      {}
func (Closed) action()    {}
