package report

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// part is what one part has counted, all by n.
func part(n uint64) Snapshot {
	return Snapshot{
		Panics: n, SharesRefused: map[string]uint64{"flows": n}, Bounds: Bounds{Wire: map[string]uint64{"shed": n}},
		CQErrors: []CQErrorCount{{Carrier: CarrierSoft, Status: "retry_exc_err", Count: n}},
		UDP: ProtoStats{
			Flows:  map[Carrier]FlowCount{CarrierSoft: {Now: int(n), Total: n}},
			Bytes:  map[Carrier]ByteCount{CarrierSoft: {Tx: n, Rx: n}},
			Native: map[string]uint64{"nat": n},
		},
		Datagrams: DatagramStats{
			Sent: map[Carrier]uint64{CarrierSoft: n}, Received: map[Carrier]uint64{CarrierSoft: n},
			Delivered: n, Returned: n, Dropped: map[DatagramDrop]uint64{DropMalformed: n},
			Resolution: ResolutionStats{Queries: n, Answers: n, Refusals: n, Asked: n, Answered: n, Refused: n, Ignored: n},
		},
	}
}

func device(name string, n uint64) DeviceInfo {
	return DeviceInfo{Name: name, Carrier: CarrierSoft, Counters: map[string]uint64{"tx_bytes": n}}
}

// TestTally: counters of parts that have ended are in every sum; what there is now is what
// lives now.
func TestTally(t *testing.T) {
	var old, next Tally
	for _, n := range []uint64{1, 2} {
		old.End(func(s *Snapshot) { *s = part(n) })
	}
	next.End(func(s *Snapshot) { // of a whole gateway, with what ended before it
		old.Sum(s, func(s *Snapshot) { *s = part(4) })
		s.Devices = []DeviceInfo{device("soft0", 4)}
	})
	for range 2 { // to read changes nothing
		var s Snapshot
		next.Sum(&s, func(s *Snapshot) { *s = part(8) })
		want := part(15)
		want.UDP.Flows[CarrierSoft] = FlowCount{Now: 8, Total: 15}
		want.Ended = []DeviceInfo{device("soft0", 4)}
		require.Equal(t, want, s)
	}
	next.End(func(s *Snapshot) { s.Devices = []DeviceInfo{device("soft1", 1), device("soft0", 2)} })
	var s Snapshot
	next.Sum(&s, func(*Snapshot) {})
	require.Equal(t, []DeviceInfo{device("soft0", 6), device("soft1", 1)}, s.Ended)
}
