package ebpf

import "time"

// EventKind says what an [Event] is about.
type EventKind uint8

const (
	// EventNative: the connection stays or became native, for Reason.
	EventNative EventKind = iota + 1
	// EventReplaced: an entry that user space works on was replaced or deleted
	// because the connection is over: a new SYN with another ISN from the local
	// app, or the client's bare SYN. ISN and State are those of the old entry.
	// The owner aborts the old flow without touching the entry.
	EventReplaced
)

// Event is one decision of the programs.
type Event struct {
	// At is the time of the decision on the monotonic clock of the kernel.
	At time.Duration
	// Time is At on the wall clock.
	Time time.Time
	// Tuple is the connection.
	Tuple Tuple
	// ISN is the initial sequence number of the connection's SYN, 0 if the
	// decision came before it.
	ISN uint32
	// Kind says what happened.
	Kind EventKind
	// Reason is a number of DESIGN §11, 0 for EventReplaced.
	Reason uint8
	// Side is the side of the local application.
	Side Side
	// State is the state of the entry before the event.
	State State
	// Rule is the index of the policy rule that matched, or NoRule.
	Rule int
}

// NoRule is the rule index of a connection that no rule matched.
const NoRule = -1
