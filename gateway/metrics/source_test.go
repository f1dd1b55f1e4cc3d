package metrics

import (
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
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
		Mode:        config.ModeObserve,
		Flows:       map[config.Carrier]int{config.CarrierShm: 3},
		FlowsTotal:  map[config.Carrier]uint64{config.CarrierShm: 40},
		Fallbacks:   []admin.FallbackCount{{Reason: "peer_no_option", Side: config.SideClient, Count: 7}},
		Decisions:   []admin.DecisionCount{{Action: config.ActionAccelerate, Rule: "redis", Count: 9}},
		BytesTotal:  map[config.Carrier]admin.ByteCount{config.CarrierShm: {Tx: 100, Rx: 200}},
		Handshakes:  map[config.Carrier]admin.HistogramSnapshot{config.CarrierShm: h.Snapshot()},
		Memory:      map[string]uint64{"rmb": 1 << 20},
		Durations:   map[config.Carrier]admin.HistogramSnapshot{config.CarrierShm: admin.NewLifeHistogram().Snapshot()},
		RoundTrips:  admin.NewSetupHistogram().Snapshot(),
		Rings:       map[config.Carrier]admin.RingUse{config.CarrierShm: {Size: 4096, Waiting: 10, Unacknowledged: 20}},
		CQErrors:    []admin.CQErrorCount{{Carrier: config.CarrierSoft, Status: "retry_exc_err", Count: 2}},
		Degraded:    []string{"device_failed"},
		CPU:         map[string]time.Duration{"shard0": 1500 * time.Millisecond, "rest": time.Second},
		MemoryLimit: 1 << 30,
		Peers:       map[admin.PeerState]int{admin.PeerCapable: 1},
		Maps:        []admin.MapUse{{Map: "flows", Entries: 5, Capacity: 65536}, {Map: "peers", Entries: 16384}},
		Devices: []admin.DeviceInfo{
			{Name: "soft0", Carrier: config.CarrierSoft, State: admin.DeviceActive, Counters: map[string]uint64{"retransmits": 7}},
			{Name: "soft1", Carrier: config.CarrierSoft, State: admin.DeviceActive},
			{Name: "hw0", Carrier: config.CarrierHW, State: admin.DeviceAbsent},
		},
		Heartbeat: time.Unix(1_700_000_000, 250_000_000),
		UDP: admin.ProtoStats{
			Flows:  map[config.Carrier]admin.FlowCount{config.CarrierSoft: {Now: 1, Total: 4}},
			Bytes:  map[config.Carrier]admin.ByteCount{config.CarrierSoft: {Tx: 1000, Rx: 2000}},
			Native: map[string]uint64{"nat": 2},
		},
		Datagrams: admin.DatagramStats{
			Sent: map[config.Carrier]uint64{config.CarrierSoft: 10}, Received: map[config.Carrier]uint64{config.CarrierSoft: 20},
			Delivered: 19, Returned: 3, Dropped: map[admin.DatagramDrop]uint64{admin.DropReassembly: 1},
			Resolution: admin.ResolutionStats{Queries: 4, Answers: 3, Refusals: 1, Asked: 5, Answered: 4, Refused: 1, Ignored: 6},
		},
		Bounds: admin.Bounds{
			Flows: 900, WireLegs: map[string]int{"open": 3, "dead": 2}, LogDropped: 4, AccessLeftOut: 9,
			Wire: map[string]uint64{"shed": 5}, Datapath: map[string]uint64{"wire_queue_drop": 6},
		},
	}
}
