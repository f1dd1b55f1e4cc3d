package metrics

import (
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/report"
)

// emptySource is a gateway that has no number yet.
type emptySource struct{}

func (emptySource) Snapshot() admin.Snapshot { return admin.Snapshot{} }
func (emptySource) Totals() admin.Snapshot   { return admin.Snapshot{} }

// sampleSource is a gateway with fixed numbers.
type sampleSource struct{}

func (s sampleSource) Totals() admin.Snapshot { return s.Snapshot() }

func (sampleSource) Snapshot() admin.Snapshot {
	h := admin.NewSetupHistogram()
	h.Observe(time.Millisecond)
	h.Observe(3 * time.Second)
	return admin.Snapshot{
		Mode:        report.ModeObserve,
		Flows:       map[report.Carrier]int{report.CarrierShm: 3},
		FlowsTotal:  map[report.Carrier]uint64{report.CarrierShm: 40},
		Fallbacks:   []admin.FallbackCount{{Reason: "peer_no_option", Side: report.SideClient, Count: 7}},
		Decisions:   []admin.DecisionCount{{Action: report.ActionAccelerate, Rule: "redis", Count: 9}},
		BytesTotal:  map[report.Carrier]admin.ByteCount{report.CarrierShm: {Tx: 100, Rx: 200}},
		Handshakes:  map[report.Carrier]admin.HistogramSnapshot{report.CarrierShm: h.Snapshot()},
		Memory:      map[string]uint64{"rmb": 1 << 20},
		Durations:   map[report.Carrier]admin.HistogramSnapshot{report.CarrierShm: admin.NewLifeHistogram().Snapshot()},
		RoundTrips:  admin.NewSetupHistogram().Snapshot(),
		Rings:       map[report.Carrier]admin.RingUse{report.CarrierShm: {Size: 4096, Waiting: 10, Unacknowledged: 20}},
		CQErrors:    []admin.CQErrorCount{{Carrier: report.CarrierSoft, Status: "retry_exc_err", Count: 2}},
		Degraded:    []string{"device_failed"},
		CPU:         map[string]time.Duration{"shard0": 1500 * time.Millisecond, "rest": time.Second},
		MemoryLimit: 1 << 30,
		Peers:       map[admin.PeerState]int{admin.PeerCapable: 1},
		Maps:        []admin.MapUse{{Map: "flows", Entries: 5, Capacity: 65536}, {Map: "peers", Entries: 16384}},
		Devices: []admin.DeviceInfo{
			{Name: "soft0", Carrier: report.CarrierSoft, State: admin.DeviceActive, Counters: map[string]uint64{"retransmits": 7}},
			{Name: "soft1", Carrier: report.CarrierSoft, State: admin.DeviceActive},
			{Name: "hw0", Carrier: report.CarrierHW, State: admin.DeviceAbsent},
		},
		Heartbeat: time.Unix(1_700_000_000, 250_000_000),
		UDP: admin.ProtoStats{
			Flows:  map[report.Carrier]admin.FlowCount{report.CarrierSoft: {Now: 1, Total: 4}},
			Bytes:  map[report.Carrier]admin.ByteCount{report.CarrierSoft: {Tx: 1000, Rx: 2000}},
			Native: map[string]uint64{"nat": 2},
		},
		Datagrams: admin.DatagramStats{
			Sent: map[report.Carrier]uint64{report.CarrierSoft: 10}, Received: map[report.Carrier]uint64{report.CarrierSoft: 20},
			Delivered: 19, Returned: 3, Dropped: map[admin.DatagramDrop]uint64{admin.DropReassembly: 1},
			Resolution: admin.ResolutionStats{Queries: 4, Answers: 3, Refusals: 1, Asked: 5, Answered: 4, Refused: 1, Ignored: 6},
		},
		Bounds: admin.Bounds{
			Flows: 900, WireLegs: map[string]int{"open": 3, "dead": 2}, LogDropped: 4, AccessLeftOut: 9,
			Wire: map[string]uint64{"shed": 5}, Datapath: map[string]uint64{"wire_queue_drop": 6},
		},
	}
}
