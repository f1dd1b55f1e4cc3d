package netstack

import "sync/atomic"

// Stats is a snapshot of the counters and table sizes of a Stack.
type Stats struct {
	// Flows counts live flows, Dead the lingering ones.
	Flows, Dead int
	// Adopted and Accepted count connections since the start.
	Adopted, Accepted uint64
	// Shed counts proved connections refused by Limits.
	Shed uint64
	// Confirmed and Unconfirmed count first segments of accepted connections
	// with and without the confirm option.
	Confirmed, Unconfirmed uint64
	// ChecksumErrors counts inbound packets with a wrong checksum, Malformed those
	// that are no TCP segment or ICMP error we could read; both are dropped.
	ChecksumErrors, Malformed uint64
	// Unknown counts inbound segments of tuples the stack does not know; they
	// are dropped.
	Unknown uint64
	// Impossible counts segments dropped because they acknowledged what the peer cannot
	// have been sent.
	Impossible uint64
	// Swallowed counts outbound packets that had no live flow.
	Swallowed uint64
	// LateSegments counts inbound segments of ended flows that were dropped,
	// LateResets the resets that answered a challenge ACK of one.
	LateSegments, LateResets uint64
	// Strangers counts connections that ended because another host than the peer
	// answered for it.
	Strangers uint64
	// DeadEvicted counts ended flows that left the lingering table early.
	DeadEvicted uint64
	// ACKsHeld counts acknowledgements that waited for something to take them
	// along, ACKsLate those for which nothing came.
	ACKsHeld, ACKsLate uint64
	// Grown counts connections that a mini socket was not enough for, Repeats what mini sockets
	// have sent again.
	Grown, Repeats uint64
	// ICMPDelivered and ICMPIgnored count ICMP errors.
	ICMPDelivered, ICMPIgnored uint64
	// BlackHoles counts how often a connection began to send smaller packets since
	// larger ones vanished.
	BlackHoles uint64
	// ReorderDropped counts inbound segments that came before others and that there was no memory for.
	ReorderDropped uint64
	// OldStamps counts inbound segments with a timestamp older than one that came before.
	OldStamps uint64
	// LinkDrops counts outbound packets the link could not take, LinkRefused those of them that the kernel calls malformed.
	LinkDrops, LinkRefused uint64
	// Retransmits, Timeouts, SegmentsSent and SegmentsReceived are gVisor's; with those of mini
	// sockets, but for Timeouts.
	Retransmits, Timeouts, SegmentsSent, SegmentsReceived uint64
}

// counters are the atomic ones behind Stats.
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
