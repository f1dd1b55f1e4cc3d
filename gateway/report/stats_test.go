package report

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestStatsSince checks the differences against counting what happened in the
// span alone.
func TestStatsSince(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, during := drawStats(t), drawStats(t)
		got, err := added(before, during).Since(before)
		require.NoError(t, err)
		require.Equal(t, during.Filled(), got.Filled())
	})
}

func TestStatsOfTwoRunsAreNotCompared(t *testing.T) {
	a, b := Stats{}, Stats{StartedAt: time.Unix(1, 0)}
	_, err := b.Since(a)
	require.ErrorIs(t, err, ErrRestarted)
}

func TestStatsNeverGoBelowZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		earlier := drawStats(t)
		d, err := Stats{}.Since(earlier)
		require.NoError(t, err)
		addCounters(&d, earlier)
		require.Equal(t, earlier.Protocols[ProtoTCP].Bytes, d.Protocols[ProtoTCP].Bytes)
		require.Equal(t, earlier.Datagrams, d.Datagrams)
	})
}

func drawStats(t *rapid.T) Stats {
	n := func(name string) uint64 { return rapid.Uint64Range(0, 1<<40).Draw(t, name) }
	proto := func() ProtoStats {
		return ProtoStats{
			Flows:  map[Carrier]FlowCount{CarrierShm: {Now: 7, Total: n("shm flows")}, CarrierSoft: {Total: n("soft flows")}},
			Bytes:  map[Carrier]ByteCount{CarrierShm: {Tx: n("tx"), Rx: n("rx")}},
			Native: map[string]uint64{"policy": n("policy")},
		}
	}
	return Stats{
		Protocols: map[Proto]ProtoStats{ProtoTCP: proto(), ProtoUDP: proto()},
		Datagrams: DatagramStats{
			Sent: map[Carrier]uint64{CarrierShm: n("sent")}, Received: map[Carrier]uint64{CarrierSoft: n("received")},
			Delivered: n("delivered"), Returned: n("returned"), Dropped: map[DatagramDrop]uint64{DropUnproven: n("unproven")},
			Resolution: ResolutionStats{n("q"), n("a"), n("r"), n("asked"), n("answered"), n("refused"), n("ignored")},
		},
	}
}

// added is the state after both; numbers of the moment are those of b.
func added(a, b Stats) Stats {
	s := Stats{Seconds: a.Seconds + b.Seconds, Protocols: map[Proto]ProtoStats{}}
	for p, x := range a.Protocols {
		y := b.Protocols[p]
		sum := ProtoStats{Flows: map[Carrier]FlowCount{}, Bytes: map[Carrier]ByteCount{}, Native: plus(x.Native, y.Native)}
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
