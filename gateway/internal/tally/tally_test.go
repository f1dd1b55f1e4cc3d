package tally

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
)

// part is what one part has counted, all by n.
func part(n uint64) report.Snapshot {
	return report.Snapshot{
		Panics: n, SharesRefused: map[string]uint64{"flows": n}, Bounds: report.Bounds{Wire: map[string]uint64{"shed": n}},
		CQErrors: []report.CQErrorCount{{Carrier: report.CarrierSoft, Status: "retry_exc_err", Count: n}},
		UDP: report.ProtoStats{
			Flows:  map[report.Carrier]report.FlowCount{report.CarrierSoft: {Now: int(n), Total: n}},
			Bytes:  map[report.Carrier]report.ByteCount{report.CarrierSoft: {Tx: n, Rx: n}},
			Native: map[string]uint64{"nat": n},
		},
		Datagrams: report.DatagramStats{
			Sent: map[report.Carrier]uint64{report.CarrierSoft: n}, Received: map[report.Carrier]uint64{report.CarrierSoft: n},
			Delivered: n, Returned: n, Dropped: map[report.DatagramDrop]uint64{report.DropMalformed: n},
			Resolution: report.ResolutionStats{Queries: n, Answers: n, Refusals: n, Asked: n, Answered: n, Refused: n, Ignored: n},
		},
	}
}

func device(name string, n uint64) report.DeviceInfo {
	return report.DeviceInfo{Name: name, Carrier: report.CarrierSoft, Counters: map[string]uint64{"tx_bytes": n}}
}

// TestTally: counters of parts that have ended are in every sum; what there is now is what
// lives now.
func TestTally(t *testing.T) {
	var old, next Tally
	for _, n := range []uint64{1, 2} {
		old.End(func(s *report.Snapshot) { *s = part(n) })
	}
	next.End(func(s *report.Snapshot) { // of a whole gateway, with what ended before it
		old.Sum(s, func(s *report.Snapshot) { *s = part(4) })
		s.Devices = []report.DeviceInfo{device("soft0", 4)}
	})
	for range 2 { // to read changes nothing
		var s report.Snapshot
		next.Sum(&s, func(s *report.Snapshot) { *s = part(8) })
		want := part(15)
		want.UDP.Flows[report.CarrierSoft] = report.FlowCount{Now: 8, Total: 15}
		want.Ended = []report.DeviceInfo{device("soft0", 4)}
		require.Equal(t, want, s)
	}
	next.End(func(s *report.Snapshot) { s.Devices = []report.DeviceInfo{device("soft1", 1), device("soft0", 2)} })
	var s report.Snapshot
	next.Sum(&s, func(*report.Snapshot) {})
	require.Equal(t, []report.DeviceInfo{device("soft0", 6), device("soft1", 1)}, s.Ended)
}
