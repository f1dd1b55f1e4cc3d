package faults

// Injector decides which fault is where. A gateway without one has none.
type Injector interface {
	// At is called where a connection arrives at a step, one of [Steps], by what
	// works for it: it may panic, and it reports whether the connection is to stay
	// there. Port is that of its server. It is called from several goroutines at
	// once.
	At(step string, port uint16) (held bool)
	// Takeover reports whether a successor is to stay at a step, one of
	// [TakeoverSteps].
	Takeover(step string) bool
}

// The steps of a connection: the states, and within them what the states do not
// tell apart.
const (
	Offered     = "offered"     // server: the offered SYN has come
	Accepted    = "accepted"    // client: before adoption; server: the third ACK has come
	Negotiating = "negotiating" // client: PROPOSAL was sent; server: before it is read
	Handover    = "handover"    // client: ACCEPT was read, the application's SYN is still to be handed over
	Completing  = "completing"  // client: the SYN was handed over; server: ACCEPT was sent
	Carrying    = "carrying"    // the data path of a queue pair, with bytes on it
	Relay       = "relay"       // a pump of a relay
	Closing     = "closing"     // a record of the end of a direction
)

// Steps lists the steps of connections.
func Steps() []string {
	return []string{Offered, Accepted, Negotiating, Handover, Completing, Carrying, Relay, Closing}
}

// The steps of a takeover, at which a test has the successor die.
const (
	TakeoverOpened  = "opened"  // its datapath is open, under its guardian
	TakeoverYielded = "yielded" // the other gateway has yielded
	TakeoverBuilt   = "built"   // it is complete, and the other one has not left
)

// TakeoverSteps lists the steps of a takeover.
func TakeoverSteps() []string { return []string{TakeoverOpened, TakeoverYielded, TakeoverBuilt} }
