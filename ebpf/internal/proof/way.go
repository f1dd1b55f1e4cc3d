package proof

// Way says how far a proof has come that has not come through.
type Way string

// The ways.
const (
	// Unproved: there is no address to prove it from yet.
	Unproved Way = "unproved"
	// Unroutable: the host has no route.
	Unroutable Way = "unroutable"
	// Output: the SYN was dropped before it left: by a rule in output or
	// postrouting.
	Output Way = "output"
	// Input: the answer was dropped before it reached the socket: by a rule in
	// ingress, prerouting or input, or by the reverse-path filter.
	Input Way = "input"
	// Confirm: what follows the answer was dropped.
	Confirm Way = "established"
	// Sockmap: bytes reach the other socket without a packet. A program of the host
	// has both sockets in a socket map and moves them; those that went as packets
	// before are overtaken by them.
	Sockmap Way = "sockmap"
)

// Error is the error of a proof that did not come through.
type Error struct{ Way Way }

// Error implements error.
func (e Error) Error() string { return "leg not proved: " + string(e.Way) }
