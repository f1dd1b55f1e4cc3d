package page

import (
	"time"

	"github.com/smcgw/smcgw/gateway/report"
)

// emptySource is a gateway that has no number yet.
type emptySource struct{}

func (emptySource) Snapshot() report.Snapshot { return report.Snapshot{} }
func (emptySource) Totals() report.Snapshot   { return report.Snapshot{} }

// sampleSource is a gateway with fixed numbers.
type sampleSource struct{}

func (s sampleSource) Totals() report.Snapshot { return s.Snapshot() }

func (sampleSource) Snapshot() report.Snapshot {
	h := report.NewSetupHistogram()
	h.Observe(time.Millisecond)
	h.Observe(3 * time.Second)
	return report.Snapshot{
		Mode:        report.ModeObserve,
		Flows:       map[report.Carrier]int{report.CarrierShm: 3},
		FlowsTotal:  map[report.Carrier]uint64{report.CarrierShm: 40},
		Fallbacks:   []report.FallbackCount{{Reason: "peer_no_option", Side: report.SideClient, Count: 7}},
		Decisions:   []report.DecisionCount{{Action: report.ActionAccelerate, Rule: "redis", Count: 9}},
		BytesTotal:  map[report.Carrier]report.ByteCount{report.CarrierShm: {Tx: 100, Rx: 200}},
		Handshakes:  map[report.Carrier]report.HistogramSnapshot{report.CarrierShm: h.Snapshot()},
		Memory:      map[string]uint64{"rmb": 1 << 20},
		Durations:   map[report.Carrier]report.HistogramSnapshot{report.CarrierShm: report.NewLifeHistogram().Snapshot()},
		RoundTrips:  report.NewSetupHistogram().Snapshot(),
		Rings:       map[report.Carrier]report.RingUse{report.CarrierShm: {Size: 4096, Waiting: 10, Unacknowledged: 20}},
		CQErrors:    []report.CQErrorCount{{Carrier: report.CarrierSoft, Status: "retry_exc_err", Count: 2}},
		Degraded:    []string{"device_failed"},
		CPU:         map[string]time.Duration{"shard0": 1500 * time.Millisecond, "rest": time.Second},
		MemoryLimit: 1 << 30,
		Peers:       map[report.PeerState]int{report.PeerCapable: 1},
		Maps:        []report.MapUse{{Map: "flows", Entries: 5, Capacity: 65536}, {Map: "peers", Entries: 16384}},
		Devices: []report.DeviceInfo{
			{Name: "soft0", Carrier: report.CarrierSoft, State: report.DeviceActive, Counters: map[string]uint64{"retransmits": 7}},
			{Name: "soft1", Carrier: report.CarrierSoft, State: report.DeviceActive},
			{Name: "hw0", Carrier: report.CarrierHW, State: report.DeviceAbsent},
		},
		Heartbeat: time.Unix(1_700_000_000, 250_000_000),
		UDP: report.ProtoStats{
			Flows:  map[report.Carrier]report.FlowCount{report.CarrierSoft: {Now: 1, Total: 4}},
			Bytes:  map[report.Carrier]report.ByteCount{report.CarrierSoft: {Tx: 1000, Rx: 2000}},
			Native: map[string]uint64{"nat": 2},
		},
		Datagrams: report.DatagramStats{
			Sent: map[report.Carrier]uint64{report.CarrierSoft: 10}, Received: map[report.Carrier]uint64{report.CarrierSoft: 20},
			Delivered: 19, Returned: 3, Dropped: map[report.DatagramDrop]uint64{report.DropReassembly: 1},
			Resolution: report.ResolutionStats{Queries: 4, Answers: 3, Refusals: 1, Asked: 5, Answered: 4, Refused: 1, Ignored: 6},
		},
		Bounds: report.Bounds{
			Flows: 900, WireLegs: map[string]int{"open": 3, "dead": 2}, LogDropped: 4, AccessLeftOut: 9,
			Wire: map[string]uint64{"shed": 5}, Datapath: map[string]uint64{"wire_queue_drop": 6},
		},
	}
}
