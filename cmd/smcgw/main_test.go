package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/smcgw/smcgw/gateway"
	"github.com/smcgw/smcgw/lab/leak"
)

func TestMain(m *testing.M) {
	testscript.Main(checked{m}, map[string]func(){"smcgw": main})
}

// checked looks for leaks when the tests are over.
type checked struct{ m *testing.M }

// Run implements testscript.TestingM.
func (c checked) Run() int { return leak.Main(c.m) }

// TestScripts runs every verb as a user does, and checks every exit status.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Getuid() == 0, nil
			}
			return false, errors.New("unknown condition " + cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":  cmdExits,
			"daemon": cmdDaemon,
		},
	})
}

// cmdExits is "exits STATUS COMMAND...": the command must end with STATUS.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d instead of %d", got, want)
	}
}

// cmdDaemon is "daemon [degraded|broken|restarts]": a daemon without a datapath answers
// on $WORK/sock, with its state in $WORK/state, until the script ends.
func cmdDaemon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: daemon [degraded|broken|restarts]")
	}
	d := &fakeDaemon{}
	if len(args) == 1 {
		d.kind = args[0]
	}
	cfg := gateway.Config{Admin: ts.MkAbs("sock"), StateDir: ts.MkAbs("state")}.WithDefaults()
	admin, err := gateway.ListenAdmin(cfg, "9.9.9", nil)
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- admin.Serve(ctx, d, d) }()
	ts.Defer(func() {
		cancel()
		ts.Check(<-done)
	})
}

// fakeDaemon is a Control with fixed answers.
type fakeDaemon struct {
	kind string
	mu   sync.Mutex
	off  bool
	// over is of a drain, reports counts what was told about it.
	over    chan struct{}
	reports int
	// asked counts calls of Stats.
	asked uint64
}

var errBroken = errors.New("broken as asked")

// Status implements gateway.Control.
func (d *fakeDaemon) Status() gateway.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := gateway.Status{
		Mode: gateway.ModeEnforce, UptimeSeconds: 90,
		Flows:          map[gateway.Carrier]int{gateway.CarrierShm: 2},
		FlowsTotal:     map[gateway.Carrier]uint64{gateway.CarrierShm: 5},
		FallbacksTotal: map[string]uint64{"policy": 1, "peer_no_option": 7},
		BytesTotal:     map[gateway.Carrier]gateway.ByteCount{gateway.CarrierShm: {Tx: 3 << 20, Rx: 100}},
		Memory:         gateway.MemoryUse{UsedBytes: 1 << 20, LimitBytes: 1 << 30}, Peers: 1,
		FlowLimit: gateway.FlowLimit{Now: 900, Configured: 20000}, LogDropped: 4,
	}
	if d.off {
		st.Mode = gateway.ModeOff
	}
	if d.kind == "degraded" {
		st.Degraded = []string{"rp_filter"}
	}
	return st
}

// Stats implements gateway.Control. Everything grows from one call to the next.
func (d *fakeDaemon) Stats() gateway.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	n := d.asked
	started := time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC)
	if d.kind == "restarts" {
		started = started.Add(time.Duration(n) * time.Second)
	}
	return gateway.Stats{
		StartedAt: started, Seconds: float64(90 * n),
		Protocols: map[gateway.Proto]gateway.ProtoStats{
			gateway.ProtoTCP: {
				Flows:  map[gateway.Carrier]gateway.FlowCount{gateway.CarrierShm: {Now: 2, Total: 5 * n}},
				Bytes:  map[gateway.Carrier]gateway.ByteCount{gateway.CarrierShm: {Tx: 3 << 20 * n, Rx: 100 * n}},
				Native: map[string]uint64{"policy": n, "peer_no_option": 7},
			},
			gateway.ProtoUDP: {
				Flows:  map[gateway.Carrier]gateway.FlowCount{gateway.CarrierSoft: {Now: 1, Total: n}},
				Bytes:  map[gateway.Carrier]gateway.ByteCount{gateway.CarrierSoft: {Tx: 1000 * n, Rx: 5000 * n}},
				Native: map[string]uint64{"nat": n},
			},
		},
		Datagrams: gateway.DatagramStats{
			Sent: map[gateway.Carrier]uint64{gateway.CarrierSoft: 10 * n}, Received: map[gateway.Carrier]uint64{gateway.CarrierSoft: 12 * n},
			Delivered: 11 * n, Returned: 3 * n, Dropped: map[gateway.DatagramDrop]uint64{gateway.DropReassembly: n},
			Resolution: gateway.ResolutionStats{Queries: 2 * n, Answers: n, Asked: n, Answered: n},
		},
	}
}

// Conns implements gateway.Control.
func (d *fakeDaemon) Conns(q gateway.ConnQuery) []gateway.ConnInfo {
	conns := []gateway.ConnInfo{{
		ID: 1, Proto: "tcp", Side: gateway.SideClient,
		Local: netip.MustParseAddrPort("10.0.0.1:40000"), Remote: netip.MustParseAddrPort("10.0.0.2:6379"),
		State: "carrying", Carrier: gateway.CarrierShm, TxBytes: 10, RxBytes: 20, AgeSeconds: 61.2,
	}}
	if q.Closed {
		conns[0].State, conns[0].End = "closed", gateway.EndClosed
	}
	if q.All {
		conns = append(conns, gateway.ConnInfo{
			ID: 2, Proto: "tcp", Side: gateway.SideClient,
			Local: netip.MustParseAddrPort("[fd00::1]:41000"), Remote: netip.MustParseAddrPort("[fd00::3]:80"),
			State: "native", Reason: "peer_no_option", DecidedBy: gateway.DecidedRemote, End: gateway.EndNative,
		})
	}
	return conns
}

// Peers implements gateway.Control.
func (d *fakeDaemon) Peers() []gateway.PeerInfo {
	return []gateway.PeerInfo{
		{Address: netip.MustParseAddr("10.0.0.2"), State: gateway.PeerCapable, Flows: 2, Carriers: []gateway.Carrier{gateway.CarrierShm}, CarriersFailed: []gateway.Carrier{gateway.CarrierSoft}, Use: gateway.PeerUse{Begun: 1, MemoryBytes: 64 << 20, ShmPeers: 1}},
		{Address: netip.MustParseAddr("fd00::3"), Port: 80, State: gateway.PeerBlackholed, Reason: "option_blackholed", ExpiresSeconds: 3600},
	}
}

// Devices implements gateway.Control.
func (d *fakeDaemon) Services() []gateway.ServiceInfo {
	return []gateway.ServiceInfo{
		{
			Address: netip.MustParseAddr("10.0.0.2"), Port: 5201, Verdict: gateway.VerdictCarry, Why: "12GiB in 60000 moves of 2 connections", Score: 12.3,
			Connections: 2, Bytes: 12 << 30, Moves: 60000, BytesPerConnection: 6 << 30, BytesPerMove: 214748, BytesPerSecond: 2e9,
		},
		{
			Address: netip.MustParseAddr("fd00::3"), Port: 80, Verdict: gateway.VerdictNative, Reason: "not_worth_it", Why: "1024B in 4 moves of 2 connections",
			Connections: 2, Bytes: 1024, Moves: 4, BytesPerConnection: 512, BytesPerMove: 256, BytesPerSecond: 1e6, Score: 0.0001, ExpiresSeconds: 600, Native: 7,
		},
	}
}

func (d *fakeDaemon) Devices() []gateway.DeviceInfo {
	return []gateway.DeviceInfo{
		{
			Name: "shm0", Kind: gateway.DeviceShm, Carrier: gateway.CarrierShm, State: gateway.DeviceActive, MTU: 4096,
			Limits: gateway.DeviceLimits{Vectors: 2, MaxQP: 100}, Use: map[string]uint64{"qps": 2},
			Counters: map[string]uint64{"bells_sent": 9, "violations": 0},
		},
		{
			Name: "soft0", Kind: gateway.DeviceSoft, Carrier: gateway.CarrierSoft, State: gateway.DeviceFailed,
			Error: "bind 10.0.0.1:4791: address already in use",
		},
	}
}

// Demote implements gateway.Control.
func (d *fakeDaemon) Demote(q gateway.DemoteQuery) int { return max(1, 2*len(q.IDs)) }

// FlushPeers implements gateway.Control.
func (d *fakeDaemon) FlushPeers() (int, error) {
	if d.kind == "broken" {
		return 0, errBroken
	}
	return 1, nil
}

// Try implements gateway.Control.
func (d *fakeDaemon) Try(gateway.Trial) (func(), error) {
	if d.kind == "broken" {
		return nil, errBroken
	}
	return func() {}, nil
}

// Drain implements gateway.Control: three connections, of which none is left at the
// second report, or one if the daemon is broken.
func (d *fakeDaemon) Drain(time.Duration) (<-chan struct{}, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = make(chan struct{})
	return d.over, nil
}

// Draining implements gateway.Control.
func (d *fakeDaemon) Draining() *gateway.DrainInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over == nil {
		return nil
	}
	i := &gateway.DrainInfo{Schema: gateway.DrainSchema, Flows: 3, RemainingSeconds: 60}
	if d.reports++; d.reports == 2 {
		i = &gateway.DrainInfo{Schema: gateway.DrainSchema, Done: true}
		if d.kind == "broken" {
			i.Flows = 1
		}
		close(d.over)
	}
	return i
}

// Neighbour implements gateway.Control.
func (*fakeDaemon) Neighbour() (gateway.Neighbour, error) {
	return gateway.Neighbour{}, gateway.ErrNoTakeover
}

// Yield implements gateway.Control.
func (*fakeDaemon) Yield() error { return errBroken }

// TakeBack implements gateway.Control.
func (*fakeDaemon) TakeBack() error { return errBroken }

// SetOff implements gateway.Control.
func (d *fakeDaemon) ResetFlows() int { return 3 }

func (d *fakeDaemon) SetOff(off bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kind == "broken" {
		return errBroken
	}
	d.off = off
	return nil
}

// Snapshot implements gateway.MetricsSource.
func (d *fakeDaemon) Snapshot() gateway.Snapshot { return gateway.Snapshot{} }
