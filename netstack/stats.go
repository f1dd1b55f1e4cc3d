package netstack

import "sync/atomic"

// Stats is a snapshot of the counters and table sizes of a Stack.
type Stats struct {
	// Flows counts live flows, Dead lingering ones.
	Flows, Dead int
	// Adopted and Accepted count connections since the start.
	Adopted, Accepted uint64
	// Shed counts proved connections that Limits refused.
	Shed uint64
	// Confirmed and Unconfirmed count first segments of accepted connections with and without the confirm option.
	Confirmed, Unconfirmed uint64
	// ChecksumErrors counts inbound packets with a wrong checksum, and Malformed those that are not a readable TCP
	// segment or ICMP error. Both are dropped.
	ChecksumErrors, Malformed uint64
	// Unknown counts inbound segments of tuples that the stack does not know, which are dropped.
	Unknown uint64
	// Impossible counts segments that were dropped because they acknowledge something the peer cannot have received.
	Impossible uint64
	// Swallowed counts outbound packets without a live flow.
	Swallowed uint64
	// LateSegments counts inbound segments of ended flows that were dropped, LateResets the resets that answered
	// challenge ACKs of such flows.
	LateSegments, LateResets uint64
	// Strangers counts connections that ended because another host answered in the peer's place.
	Strangers uint64
	// DeadEvicted counts ended flows that were evicted from the lingering table.
	DeadEvicted uint64
	// ACKsHeld counts acknowledgements that were delayed to travel with another segment, ACKsLate those that had to be
	// sent alone.
	ACKsHeld, ACKsLate uint64
	// Grown counts connections that needed more than a mini socket, Repeats the retransmissions of mini sockets.
	Grown, Repeats uint64
	// ICMPDelivered and ICMPIgnored count ICMP errors.
	ICMPDelivered, ICMPIgnored uint64
	// BlackHoles counts how often a connection switched to smaller packets because larger ones were lost.
	BlackHoles uint64
	// ReorderDropped counts inbound segments ahead of a gap that were dropped because their memory bound was reached.
	ReorderDropped uint64
	// OldStamps counts inbound segments whose timestamp is older than that of an earlier one.
	OldStamps uint64
	// LinkDrops counts outbound packets that the link did not accept, LinkRefused those that the kernel calls
	// malformed.
	LinkDrops, LinkRefused uint64
	// Retransmits, Timeouts, SegmentsSent and SegmentsReceived are gVisor's counters; all but Timeouts include mini
	// sockets.
	Retransmits, Timeouts, SegmentsSent, SegmentsReceived uint64
}

// counters are the atomic counters of Stats.
type counters struct {
	adopted, accepted         atomic.Uint64
	shed                      atomic.Uint64
	confirmed, unconfirmed    atomic.Uint64
	checksumErrors, malformed atomic.Uint64
	unknown                   atomic.Uint64
	impossible, swallowed     atomic.Uint64
	lateSegments, lateResets  atomic.Uint64
	strangers                 atomic.Uint64
	acksHeld, acksLate        atomic.Uint64
	grown, repeats, miniSent  atomic.Uint64
	miniReceived              atomic.Uint64
	icmpDelivered             atomic.Uint64
	icmpIgnored               atomic.Uint64
	blackHoles                atomic.Uint64
	reorderDropped, oldStamps atomic.Uint64
}

// Stats returns a snapshot.
func (s *Stack) Stats() Stats {
	c := &s.count
	st := Stats{
		Adopted: c.adopted.Load(), Accepted: c.accepted.Load(),
		Shed:      c.shed.Load(),
		Confirmed: c.confirmed.Load(), Unconfirmed: c.unconfirmed.Load(),
		ChecksumErrors: c.checksumErrors.Load(), Malformed: c.malformed.Load(),
		Unknown:    c.unknown.Load(),
		Impossible: c.impossible.Load(), Swallowed: c.swallowed.Load(),
		LateSegments: c.lateSegments.Load(), LateResets: c.lateResets.Load(), Strangers: c.strangers.Load(),
		ACKsHeld: c.acksHeld.Load(), ACKsLate: c.acksLate.Load(),
		ICMPDelivered: c.icmpDelivered.Load(), ICMPIgnored: c.icmpIgnored.Load(),
		Grown: c.grown.Load(), Repeats: c.repeats.Load(),
		BlackHoles: c.blackHoles.Load(), ReorderDropped: c.reorderDropped.Load(), OldStamps: c.oldStamps.Load(),
		LinkDrops: s.link.Drops(), LinkRefused: s.link.Refused(),
	}
	st.Flows, st.Dead, st.DeadEvicted = s.flows.sizes()
	t := s.stack.Stats().TCP
	st.Retransmits, st.Timeouts = t.Retransmits.Value()+st.Repeats, t.Timeouts.Value()
	st.SegmentsSent, st.SegmentsReceived = t.SegmentsSent.Value()+c.miniSent.Load(), t.ValidSegmentsReceived.Value()+c.miniReceived.Load()
	return st
}
