package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// fakeControl is a Control and a MetricsSource with fixed answers.
type fakeControl struct {
	mu   sync.Mutex
	offs []bool
	// resets is how often everything carried was reset.
	resets int
	fail   error
	// demoted are the queries of Demote.
	demoted []DemoteQuery
	// tried are the trials that began, ended is the number of those that are over.
	tried    []config.Trial
	ended    int
	tryError error
	// over is closed by the test to end the drain; drained are the timeouts asked for.
	over    chan struct{}
	drained []time.Duration
	drain   *report.DrainInfo
	// steps are the calls of Renew.
	steps []string
	// beats: the datapath does.
	beats bool
	// status is returned by Status, empty by default.
	status report.Status
	// optedIn are the opt-ins in force.
	optedIn []config.OptIn
	// more is how many connections there are beside the samples.
	more int
	// feed is what Feed returns.
	feed *report.Feed
}

func (f *fakeControl) Feed() *report.Feed { return f.feed }

func (f *fakeControl) Status() report.Status { return f.status }

func (f *fakeControl) Stats() report.Stats { return sampleStats() }

func (f *fakeControl) Conns(q report.ConnQuery) []report.ConnInfo {
	var list []report.ConnInfo
	for i, wanted := range []bool{q.Live(), q.Natives(), q.Ended()} {
		if wanted {
			list = append(list, sampleConns()[i])
		}
	}
	if !q.Details {
		for i := range list {
			list[i].Pair = nil
		}
	}
	return append(list, make([]report.ConnInfo, f.more)...)
}

func (f *fakeControl) Peers() []report.PeerInfo { return samplePeers() }

func (f *fakeControl) Policy() report.PolicyReport { return samplePolicy() }

func samplePolicy() report.PolicyReport {
	ten := 10.0
	return report.PolicyReport{
		Schema: policySchema, Mode: report.ModeObserve, Rollout: report.RolloutReport{Percent: 10}, Forgotten: 1,
		Rules: []report.RuleReport{
			{Name: "redis", Action: report.ActionAccelerate, Proto: report.ProtoTCP, Direction: report.DirectionBoth, Percent: &ten, Selected: 7, Passed: 63, Bytes: 4000, Bulk: 0},
			{Name: "default", Action: report.ActionPass, Passed: 5},
		},
		Observed: []report.ObservedService{{
			Side: report.SideServer, Port: 5201, Rule: "default", Hosts: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, MoreHosts: true,
			Connections: 3, Ended: 2, Bytes: report.ByteCount{Tx: 1, Rx: 1 << 30}, Bulk: 1, BulkBytes: 1 << 30, BulkBytesPerSecond: 1e9,
		}},
	}
}

func (f *fakeControl) Devices() DeviceList { return sampleDeviceList() }

func sampleDeviceList() DeviceList {
	return DeviceList{Schema: devicesSchema, Devices: sampleDevices(), RDMA: sysfs.RDMA{
		Namespaces: "exclusive", Memlock: 65536,
		Adapters: []sysfs.Adapter{{
			Name: "mlx5_0", Driver: "mlx5_core", PCI: "0000:3b:00.0", Node: "CA", Firmware: "22.41.1000",
			Verbs: &sysfs.Node{Path: "/dev/infiniband/uverbs0"}, Limits: map[string]uint64{"hca_object": 2000},
			Ports: []sysfs.Port{{
				Number: 1, LinkLayer: "Ethernet", State: "DOWN", Physical: "Disabled", Rate: "100 Gb/sec (2X HDR)", Unusable: "the port is DOWN",
				GIDs:       []sysfs.GID{{Index: 3, GID: netip.MustParseAddr("::ffff:10.0.0.1"), Type: sysfs.RoCEv2, Device: "ens1f0"}},
				Priorities: &sysfs.Priorities{PFC: []int{3}, DSCP: map[int]int{26: 3}},
			}},
		}},
	}}
}

func (f *fakeControl) Demote(q DemoteQuery) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.demoted = append(f.demoted, q)
	return 7, f.fail
}

func (f *fakeControl) Set(s Setting) error {
	if s.Value == "loud" {
		return fmt.Errorf("%w: %q is no level", ErrSetting, s.Value)
	}
	return f.fail
}

func (f *fakeControl) OptIn(o config.OptIn) (func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.ID == 0 {
		return nil, fmt.Errorf("%w: no such cgroup", config.ErrOptIn)
	}
	f.optedIn = append(f.optedIn, o)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.optedIn = nil
	}, f.fail
}

func (f *fakeControl) FlushPeers() (int, error) { return 2, f.fail }

func (f *fakeControl) Try(t config.Trial) (func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tryError != nil {
		return nil, f.tryError
	}
	f.tried = append(f.tried, t)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ended++
	}, nil
}

// trials returns what was tried and how many of them have ended.
func (f *fakeControl) trials() ([]config.Trial, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]config.Trial(nil), f.tried...), f.ended
}

func (f *fakeControl) Drain(timeout time.Duration) (<-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	f.drained = append(f.drained, timeout)
	if f.over == nil {
		f.over = make(chan struct{})
	}
	f.drain = &report.DrainInfo{Schema: report.DrainSchema, Flows: 3, RemainingSeconds: 5}
	return f.over, nil
}

// endDrain ends a drain as a gateway does.
func (f *fakeControl) endDrain(left int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drain = &report.DrainInfo{Schema: report.DrainSchema, Flows: left, Done: true}
	close(f.over)
}

func (f *fakeControl) Draining() *report.DrainInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.drain
}

// breakWith has what follows fail; nil: work again.
func (f *fakeControl) breakWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

func (f *fakeControl) Renew(ctx context.Context, always bool) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := ctx.Deadline(); !ok {
		return false, errFake
	}
	if always {
		f.steps = append(f.steps, "replace")
	} else {
		f.steps = append(f.steps, "reload")
	}
	return always, f.fail
}

// taken returns the steps.
func (f *fakeControl) taken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.steps...)
}

func (f *fakeControl) SetOff(off bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.offs = append(f.offs, off)
	return f.fail
}

func (f *fakeControl) ResetFlows() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resets++
	return 3
}

func (f *fakeControl) switched() []bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]bool(nil), f.offs...)
}

var errFake = errors.New("map update: no such file")

func sampleStatus() report.Status {
	return report.Status{
		Schema: statusSchema, Mode: report.ModeEnforce, Version: "1.2.3", UptimeSeconds: 12.5,
		Flows:          map[report.Carrier]int{report.CarrierShm: 3},
		FlowsTotal:     map[report.Carrier]uint64{report.CarrierShm: 40, report.CarrierRelay: 2},
		FallbacksTotal: map[string]uint64{"peer_no_option": 7, "policy": 1},
		BytesTotal:     map[report.Carrier]report.ByteCount{report.CarrierShm: {Tx: 1 << 20, Rx: 5}},
		Memory:         report.MemoryUse{UsedBytes: 1 << 21, LimitBytes: 1 << 30},
		Peers:          2,
		Notes:          []string{"soft1: receives on UDP port 4793: adapter mlx5_0/1 takes UDP port 4791"},
	}.Filled()
}

func sampleConns() []report.ConnInfo {
	return []report.ConnInfo{
		{
			ID: 1, Proto: "tcp", Side: report.SideClient,
			Local: netip.MustParseAddrPort("10.0.0.1:40000"), Remote: netip.MustParseAddrPort("10.0.0.2:6379"),
			State: "carrying", Way: report.WaySteered, Carrier: report.CarrierShm, TxBytes: 10, RxBytes: 20, AgeSeconds: 1.5,
			Pair: &report.PairInfo{
				QPN: 17, Sent: 10, Acknowledged: 8, Received: 20, Consumed: 20, Unsent: 3, RingBytes: 65536, Window: 16384, Credits: 30,
				RoundTripSeconds: 0.00025, Retransmits: 4,
			},
		},
		{
			ID: 2, Proto: "tcp", Side: report.SideServer,
			Local: netip.MustParseAddrPort("[fd00::1]:80"), Remote: netip.MustParseAddrPort("[fd00::2]:55555"),
			State: "native", Way: report.WayNative, Reason: "peer_no_option", DecidedBy: report.DecidedRemote, AgeSeconds: 3,
			End: report.EndNative, EndedAt: time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC),
		},
		{
			ID: 3, Proto: "tcp", Side: report.SideClient,
			Local: netip.MustParseAddrPort("10.0.0.1:40001"), Remote: netip.MustParseAddrPort("10.0.0.2:6379"),
			State: "aborted", Way: report.WaySteered, Carrier: report.CarrierRelay, Reason: "wire_reset", DecidedBy: report.DecidedLocal, TxBytes: 1,
			AgeSeconds: 60, End: report.EndAborted, EndedAt: time.Date(2026, 11, 20, 9, 31, 0, 0, time.UTC),
		},
	}
}

func samplePeers() []report.PeerInfo {
	return []report.PeerInfo{
		{Address: netip.MustParseAddr("10.0.0.2"), State: report.PeerCapable, Flows: 3, Carriers: []report.Carrier{report.CarrierShm}},
		{Address: netip.MustParseAddr("fd00::9"), Port: 80, State: report.PeerIncapable, Reason: "app_refused", ExpiresSeconds: 590},
	}
}

func sampleDevices() []report.DeviceInfo {
	return []report.DeviceInfo{
		{
			Name: "soft0", Kind: report.DeviceSoft, Carrier: report.CarrierSoft, State: report.DeviceActive, UDPPort: 4791, MTU: 1024,
			GIDs:   []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fd00::1")},
			Limits: report.DeviceLimits{Vectors: 1, MaxQP: 65536, MaxQPWR: 32768, MaxMR: 1 << 20, MaxMRSize: 1 << 30, MaxMsgSize: 1 << 31},
			Use:    map[string]uint64{"qps": 3}, Counters: map[string]uint64{"retransmits": 7},
		},
		{Name: "soft1", Kind: report.DeviceSoft, Carrier: report.CarrierSoft, State: report.DeviceActive, UDPPort: 4793, Note: "receives on UDP port 4793: adapter mlx5_0/1 takes UDP port 4791"},
		{Name: "hw0", Kind: report.DeviceHW, Carrier: report.CarrierHW, State: report.DeviceAbsent, Error: "not available in this version"},
	}
}

// beat is a time of the past, unless the datapath is to beat now.
func (f *fakeControl) beat() time.Time {
	if f.beats {
		return time.Now()
	}
	return time.Unix(1_700_000_000, 0)
}

// Totals implements MetricsSource.
func (f *fakeControl) Totals() report.Snapshot { return f.Snapshot() }

// Snapshot implements MetricsSource.
func (f *fakeControl) Snapshot() report.Snapshot {
	return report.Snapshot{Mode: report.ModeObserve, Degraded: []string{"device_failed"}, Heartbeat: f.beat()}
}

// TestMain fails the run if a test left a goroutine or a descriptor behind. With $LISTEN it listens there instead,
// until its standard input ends.
func TestMain(m *testing.M) {
	if path := os.Getenv("LISTEN"); path != "" {
		if _, err := net.Listen("unix", path); err != nil {
			panic(err)
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(leak.Main(m))
}
