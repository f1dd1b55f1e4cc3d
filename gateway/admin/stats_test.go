package admin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/gateway/report"
)

func sampleStats() Stats {
	return Stats{
		Schema: statsSchema, StartedAt: time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC), Seconds: 12.5,
		Protocols: map[report.Proto]ProtoStats{
			report.ProtoTCP: {
				Flows:  map[report.Carrier]FlowCount{report.CarrierShm: {Now: 3, Total: 40}, report.CarrierRelay: {Total: 2}},
				Bytes:  map[report.Carrier]ByteCount{report.CarrierShm: {Tx: 1 << 20, Rx: 5}},
				Native: map[string]uint64{"peer_no_option": 7, "policy": 1},
			},
			report.ProtoUDP: {
				Flows:  map[report.Carrier]FlowCount{report.CarrierSoft: {Now: 1, Total: 4}},
				Bytes:  map[report.Carrier]ByteCount{report.CarrierSoft: {Tx: 1000, Rx: 2000}},
				Native: map[string]uint64{"nat": 2},
			},
		},
		Datagrams: DatagramStats{
			Sent: map[report.Carrier]uint64{report.CarrierSoft: 10}, Received: map[report.Carrier]uint64{report.CarrierSoft: 20},
			Delivered: 19, Returned: 3, Dropped: map[DatagramDrop]uint64{DropReassembly: 1},
			Resolution: ResolutionStats{Queries: 4, Answers: 3, Refusals: 1, Asked: 5, Answered: 4, Refused: 1, Ignored: 6},
		},
	}.filled()
}

// TestStatsSince checks the differences against counting what happened in the
// span alone.
func TestStatsSince(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, during := drawStats(t), drawStats(t)
		got, err := added(before, during).Since(before)
		require.NoError(t, err)
		require.Equal(t, during.filled(), got.filled())
	})
}

func drawStats(t *rapid.T) Stats {
	n := func(name string) uint64 { return rapid.Uint64Range(0, 1<<40).Draw(t, name) }
	proto := func() ProtoStats {
		return ProtoStats{
			Flows:  map[report.Carrier]FlowCount{report.CarrierShm: {Now: 7, Total: n("shm flows")}, report.CarrierSoft: {Total: n("soft flows")}},
			Bytes:  map[report.Carrier]ByteCount{report.CarrierShm: {Tx: n("tx"), Rx: n("rx")}},
			Native: map[string]uint64{"policy": n("policy")},
		}
	}
	return Stats{
		Protocols: map[report.Proto]ProtoStats{report.ProtoTCP: proto(), report.ProtoUDP: proto()},
		Datagrams: DatagramStats{
			Sent: map[report.Carrier]uint64{report.CarrierShm: n("sent")}, Received: map[report.Carrier]uint64{report.CarrierSoft: n("received")},
			Delivered: n("delivered"), Returned: n("returned"), Dropped: map[DatagramDrop]uint64{DropUnproven: n("unproven")},
			Resolution: ResolutionStats{n("q"), n("a"), n("r"), n("asked"), n("answered"), n("refused"), n("ignored")},
		},
	}
}

// added is the state after both; numbers of the moment are those of b.
func added(a, b Stats) Stats {
	s := Stats{Seconds: a.Seconds + b.Seconds, Protocols: map[report.Proto]ProtoStats{}}
	for p, x := range a.Protocols {
		y := b.Protocols[p]
		sum := ProtoStats{Flows: map[report.Carrier]FlowCount{}, Bytes: map[report.Carrier]ByteCount{}, Native: plus(x.Native, y.Native)}
		for c := range x.Flows {
			sum.Flows[c] = FlowCount{Now: y.Flows[c].Now, Total: x.Flows[c].Total + y.Flows[c].Total}
		}
		for c := range x.Bytes {
			sum.Bytes[c] = ByteCount{Tx: x.Bytes[c].Tx + y.Bytes[c].Tx, Rx: x.Bytes[c].Rx + y.Bytes[c].Rx}
		}
		s.Protocols[p] = sum
	}
	x, y := a.Datagrams, b.Datagrams
	r, q := x.Resolution, y.Resolution
	s.Datagrams = DatagramStats{
		Sent: plus(x.Sent, y.Sent), Received: plus(x.Received, y.Received), Delivered: x.Delivered + y.Delivered,
		Returned: x.Returned + y.Returned, Dropped: plus(x.Dropped, y.Dropped),
		Resolution: ResolutionStats{
			r.Queries + q.Queries, r.Answers + q.Answers, r.Refusals + q.Refusals,
			r.Asked + q.Asked, r.Answered + q.Answered, r.Refused + q.Refused, r.Ignored + q.Ignored,
		},
	}
	return s
}

func plus[K comparable](a, b map[K]uint64) map[K]uint64 {
	out := map[K]uint64{}
	for k, n := range a {
		out[k] += n
	}
	for k, n := range b {
		out[k] += n
	}
	return out
}

func TestStatsOfTwoRunsAreNotCompared(t *testing.T) {
	a, b := sampleStats(), sampleStats()
	b.StartedAt = b.StartedAt.Add(time.Second)
	_, err := b.Since(a)
	require.ErrorIs(t, err, errRestarted)
}

func TestStatsNeverGoBelowZero(t *testing.T) {
	_, err := Stats{}.filled().Since(sampleStats())
	require.ErrorIs(t, err, errRestarted)
	earlier := sampleStats()
	later := Stats{StartedAt: earlier.StartedAt}.filled()
	d, err := later.Since(earlier)
	require.NoError(t, err)
	require.Equal(t, later, d)
}

func TestAdminStats(t *testing.T) {
	a := startAdmin(t, nil)
	st, err := a.client.Stats(t.Context())
	require.NoError(t, err)
	require.Equal(t, sampleStats(), st)
}
