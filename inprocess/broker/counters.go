package broker

import "github.com/smcgw/smcgw/inprocess"

// ByWhy counts by reason.
type ByWhy [inprocess.WhyCount]uint64

// Counters are the broker's. What is not a total is as of now.
type Counters struct {
	Processes, Waiting, Conns int
	Memory                    int64 // reserved, of those held, too
	Held                      int   // connections and processes that have ended while a process has memory of theirs

	ProcessesTotal   uint64
	ProcessesRefused uint64 // by a limit
	Asks             uint64
	Promoted         uint64 // connections granted to both ends
	Broken           uint64 // of Promoted, those that have ended because an end said what cannot be
	Undone           uint64 // matched, but not to be granted to both
	Expired          uint64 // those that waited in vain
	Denied           ByWhy
	Returned         ByWhy       // ends whose library says why they went back, or will never ask, and those that Review sent back
	Caused           [256]uint64 // in neither of them: those with a Cause that tells more, by its number
	Strays           uint64      // closed ends that were not known
	Misbehaved       uint64      // clients that said what cannot be
	QueueFull        uint64      // answers that a client had no room for
	RunsRefused      uint64
	MovedBytes       uint64 // by the rings of connections that have ended, and of those of other brokers, both directions, as their libraries say
}
