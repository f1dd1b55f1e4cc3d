package proof

// Way says how far an unsuccessful proof got.
type Way string

// The ways.
const (
	// Unproved: there is no address yet from which to prove.
	Unproved Way = "unproved"
	// Unroutable: the host has no route.
	Unroutable Way = "unroutable"
	// Output: the SYN was dropped before it left, by a rule in output or postrouting.
	Output Way = "output"
	// Input: the answer was dropped before it reached the socket, by a rule in ingress, prerouting or input, or by the
	// reverse-path filter.
	Input Way = "input"
	// Confirm: packets after the answer were dropped.
	Confirm Way = "established"
	// Sockmap: bytes reached the other socket without a packet. A program of the host has put both sockets into a
	// socket map and moves the bytes; they overtake those that were sent as packets before.
	Sockmap Way = "sockmap"
)

// Error is the error of an unsuccessful proof.
type Error struct{ Way Way }

// Error implements error.
func (e Error) Error() string { return "leg not proved: " + string(e.Way) }
