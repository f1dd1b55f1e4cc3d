package between

import "github.com/smcgw/smcgw/negotiate"

// Action is one thing the owner of a Control has to do, in the order given: one of Greeted, Find, Prove, Carry, Tell,
// TellPlace, Ask, PeerEnded, Lose, Closed. After each event it also writes what is [Control.Pending].
type Action interface{ action() }

type (
	// Greeted says that the peer is there. From now on who has opened the control connection may offer.
	Greeted struct{ Peer Hello }

	// Find (server) asks the broker for the end with the Name of Offer; its carriers are one at least. Control.Answer when
	// it has asked and links are made, which may take 60 s, or Control.Decline.
	Find struct {
		Number uint64
		Offer  Offer
	}

	// Prove (client) proves one of the carriers, of which each was offered: Control.Proved, or Control.Decline.
	Prove struct {
		Number   uint64
		Carriers []negotiate.CarrierOffer
	}

	// Carry says that both sides have agreed: the ends may begin, and their libraries attach.
	Carry struct {
		Number  uint64
		Carrier negotiate.CarrierKind
	}

	// Tell sets the flags of the mirror: what the peer's library has said, once is for good.
	Tell struct {
		Number           uint64
		Attached, Recall bool
	}

	// TellPlace says in the mirror where the peer's library is in the kernel's stream.
	TellPlace struct {
		Number uint64
		Place  Place
	}

	// Ask wants the place of the own library: Control.Opened.
	Ask struct{ Number uint64 }

	// PeerEnded is the last of a number. The peer's process has Exited, with so many bytes Written into its ring; or its
	// library has left the ring, in both directions.
	PeerEnded struct {
		Number  uint64
		Exited  bool
		Written uint64
	}

	// Lose says that the carrier of a number has ended, or that there will be none: it sends no more, and its mirror is
	// GONE. Remote: the peer says so. Over: it is the last of the number; otherwise Ask and PeerEnded may follow, and
	// Control.Exited or Control.Left must.
	Lose struct {
		Number uint64
		Reason negotiate.Reason
		Remote bool
		Over   bool
	}

	// Closed is the last action: close the TCP connection after what is still to be written, if that does not wait. Each
	// number was lost before. ReasonNone: there was nothing to say for a while.
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
