package gateway

import (
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/netstack"
)

// readWire sets the statistics of the wire TCP.
func readWire(b *report.Bounds, st netstack.Stats) {
	b.WireLegs = map[string]int{"open": st.Flows, "dead": st.Dead}
	b.Wire = map[string]uint64{
		"adopted": st.Adopted, "accepted": st.Accepted, "shed": st.Shed,
		"checksum_error": st.ChecksumErrors, "malformed": st.Malformed,
		"unknown": st.Unknown, "late_segment": st.LateSegments,
		"dead_evicted": st.DeadEvicted, "link_drop": st.LinkDrops, "link_refused": st.LinkRefused, "retransmit": st.Retransmits, "timeout": st.Timeouts,
		"stranger": st.Strangers, "impossible_ack": st.Impossible, "black_hole": st.BlackHoles,
		"reorder_drop": st.ReorderDropped, "old_timestamp": st.OldStamps,
	}
}
