package faults

// Injector decides which faults to inject where. A gateway without one has none.
type Injector interface {
	// At is called by the code that works for a connection when the connection reaches a
	// step, one of [Steps]. It may panic, and it reports whether the connection is to be held
	// there. port is the server's port. It is called concurrently from several goroutines.
	At(step string, port uint16) (held bool)
	// Takeover reports whether a successor is to be held at a step, one of [TakeoverSteps].
	Takeover(step string) bool
}

// The steps of a connection: the states, and further distinctions within them.
const (
	Offered     = "offered"     // server: the offered SYN has arrived
	Accepted    = "accepted"    // client: before adoption; server: the third ACK has arrived
	Negotiating = "negotiating" // client: PROPOSAL was sent; server: before it is read
	Handover    = "handover"    // client: ACCEPT was read, the application's SYN has yet to be handed over
	Completing  = "completing"  // client: the SYN was handed over; server: ACCEPT was sent
	Carrying    = "carrying"    // the data path of a queue pair, with bytes in it
	Relay       = "relay"       // the pump of a relay
	Closing     = "closing"     // a record about the end of a direction
)

// Steps lists the steps of connections.
func Steps() []string {
	return []string{Offered, Accepted, Negotiating, Handover, Completing, Carrying, Relay, Closing}
}

// The steps of a takeover at which a test makes the successor die.
const (
	TakeoverOpened  = "opened"  // its datapath is open, under its guardian
	TakeoverYielded = "yielded" // the other gateway has yielded
	TakeoverBuilt   = "built"   // it is complete, and the other gateway has not left
)

// TakeoverSteps lists the steps of a takeover.
func TakeoverSteps() []string { return []string{TakeoverOpened, TakeoverYielded, TakeoverBuilt} }
