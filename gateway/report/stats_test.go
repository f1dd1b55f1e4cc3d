package report

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/negotiate"
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

func TestCopiesPerByte(t *testing.T) {
	s := Snapshot{
		BytesTotal: map[Carrier]ByteCount{CarrierShm: {Tx: 10, Rx: 1}, CarrierSoft: {Tx: 100, Rx: 10}, CarrierHW: {Tx: 4, Rx: 3}},
		Devices: []DeviceInfo{
			{Carrier: CarrierShm, Counters: map[string]uint64{"bells_sent": 5}},
			{Carrier: CarrierSoft, Counters: map[string]uint64{"tx_bytes": 1000, "rx_bytes": 2000, "rx_packets": 7}},
		},
		Ended: []DeviceInfo{{Carrier: CarrierSoft, Counters: map[string]uint64{"tx_bytes": 20000}}},
	}
	require.Equal(t, map[Carrier]uint64{CarrierShm: 11, CarrierHW: 7, CarrierSoft: 23120, CarrierRelay: 0}, copiedBytes(&s))
}

func TestHistogram(t *testing.T) {
	h := NewSetupHistogram()
	for _, d := range []time.Duration{-1, 0, 50 * time.Microsecond, 51 * time.Microsecond, time.Second, time.Hour} {
		h.Observe(d)
	}
	s := h.Snapshot()
	require.EqualValues(t, 6, s.Count)
	require.EqualValues(t, 3, s.Buckets[50e-6])
	require.EqualValues(t, 4, s.Buckets[100e-6])
	require.EqualValues(t, 5, s.Buckets[2])
	require.InDelta(t, 3601.0001, s.Sum, 0.001)
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Observe(time.Millisecond) }))
}

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

// TestDevices: a device goes on from what those of its name have counted, one that is not
// there has that, and to read changes nothing.
func TestDevices(t *testing.T) {
	var devices PastDevices
	none := DeviceInfo{Name: "soft0"}
	devices.Sum(&none)
	require.Empty(t, none.Counters)
	devices.End(device("soft0", 1))
	devices.End(device("soft1", 2))
	devices.End(device("soft0", 4))
	for range 2 {
		d := device("soft0", 8)
		devices.Sum(&d)
		require.Equal(t, device("soft0", 13), d)
		gone := DeviceInfo{Name: "soft0"}
		devices.Sum(&gone)
		require.Equal(t, map[string]uint64{"tx_bytes": 5}, gone.Counters)
	}
}

// TestDevicesAreBounded: a host that makes ever new adapters fills no memory.
func TestDevicesAreBounded(t *testing.T) {
	var devices PastDevices
	for i := range 3 * devicesMost {
		devices.End(device("rxe"+strconv.Itoa(i), 1))
		require.LessOrEqual(t, len(devices.past), devicesMost)
	}
	last := DeviceInfo{Name: "rxe" + strconv.Itoa(3*devicesMost-1)}
	devices.Sum(&last)
	require.NotEmpty(t, last.Counters)
}

func TestEveryReasonIsExplained(t *testing.T) {
	list := Codes()
	require.Equal(t, codesSchema, list.Schema)
	require.Len(t, list.Codes, len(negotiate.Reasons())+len(inProcessCodes())+3)
	for _, c := range list.Codes {
		require.NotEmpty(t, c.Meaning, c.Name)
		require.NotEmpty(t, c.Fix, c.Name)
		got, ok := CodeNamed(c.Name)
		require.True(t, ok)
		require.Equal(t, c, got)
	}
	_, ok := CodeNamed("no_such_reason")
	require.False(t, ok)
	_, ok = CodeNamed(GuardTripped)
	require.True(t, ok)
	c, ok := CodeNamed("peer_no_option")
	require.True(t, ok)
	require.Equal(t, 20, c.Code)
	for name, metric := range map[string]string{
		"peer_no_option":  `smcgw_fallbacks_total{reason="peer_no_option"}`,
		"no_peer":         `smcgw_in_process_native_total{reason="no_peer"}`,
		"peer_unresolved": `smcgw_dgram_native_total{reason="peer_unresolved"}`,
	} {
		c, ok := CodeNamed(name)
		require.True(t, ok)
		require.Equal(t, metric, c.Metric)
	}
}

// TestMain fails the run if a test left a goroutine or a descriptor behind.
func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }
