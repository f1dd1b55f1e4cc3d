package broker

import "github.com/smcgw/smcgw/inprocess"

// ByWhy counts by reason.
type ByWhy [inprocess.WhyCount]uint64

// Counters are the broker's counters. Those that are not totals are current values.
type Counters struct {
	Processes, Waiting, Conns int
	Memory                    int64 // reserved, including that of held connections
	Held                      int   // connections and processes that have ended while a process still has their memory

	ProcessesTotal   uint64
	ProcessesRefused uint64 // by a limit
	Asks             uint64
	Promoted         uint64 // connections granted to both ends
	Broken           uint64 // of Promoted, those that ended with a protocol error of an end
	Undone           uint64 // matched, but could not be granted to both
	Expired          uint64 // ends that waited in vain
	Denied           ByWhy
	Returned         ByWhy       // ends that went back or will never ask, as their libraries say, or were sent back
	Caused           [256]uint64 // by Cause number: ends in neither of the above, since Cause tells more
	Strays           uint64      // Closed records for ends that were not known
	Misbehaved       uint64      // clients that sent something impossible
	QueueFull        uint64      // answers that were lost, as the client was owed too many
	RunsRefused      uint64
	MovedBytes       uint64 // ring bytes, both directions, of ended connections and of other brokers', as libraries say
}
