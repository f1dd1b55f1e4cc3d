package gateway

// Faults puts faults where nothing outside of the process can. This package has
// the places only; package faults of the laboratory reads from the environment
// which fault is where, for a program that tests build. The program that runs on
// hosts has none.
type Faults interface {
	// At is called where a connection arrives at a step, one of [FaultSteps], by
	// what works for it: it may panic, and it reports whether the connection is to
	// stay there. Port is that of its server. It is called from several goroutines
	// at once.
	At(step string, port uint16) (held bool)
	// Takeover reports whether a successor is to stay at a step, one of
	// [TakeoverSteps].
	Takeover(step string) bool
}

// The steps of a connection: the states, and within them what the states do not
// tell apart.
const (
	stepOffered     = "offered"     // server: the offered SYN has come
	stepAccepted    = "accepted"    // client: before adoption; server: the third ACK has come
	stepNegotiating = "negotiating" // client: PROPOSAL was sent; server: before it is read
	stepHandover    = "handover"    // client: ACCEPT was read, the application's SYN is still to be handed over
	stepCompleting  = "completing"  // client: the SYN was handed over; server: ACCEPT was sent
	stepCarrying    = "carrying"    // the data path of a queue pair, with bytes on it
	stepRelay       = "relay"       // a pump of a relay
	stepClosing     = "closing"     // a record of the end of a direction
)

// FaultSteps lists the steps of connections.
func FaultSteps() []string {
	return []string{stepOffered, stepAccepted, stepNegotiating, stepHandover, stepCompleting, stepCarrying, stepRelay, stepClosing}
}

// TakeoverSteps lists the steps of a takeover.
func TakeoverSteps() []string { return []string{takeoverOpened, takeoverYielded, takeoverActivated} }

// step is called where a flow arrives at a step, and reports whether it is to stay
// there.
func (f *flow) step(step string) (held bool) {
	return f.g.faults != nil && f.g.faults.At(step, servicePort(f.tuple, f.side))
}
