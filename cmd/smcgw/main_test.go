package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/machine"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/internal/golden"
	"github.com/smcgw/smcgw/lab/leak"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

func TestMain(m *testing.M) {
	testscript.Main(checked{m}, map[string]func(){
		"smcgw":      func() { onHost(sysfs.RDMA{Adapters: []sysfs.Adapter{}, Memlock: -1}, healthyHost()) },
		"smcgw-rdma": func() { onHost(sampleRDMA(), brokenHost()) },
		fakeProgram:  fakeMain,
	})
}

// onHost is main on a host with these adapters.
func onHost(h sysfs.RDMA, examined *fakeHost) {
	e := osEnv()
	e.service = filepath.Join(os.Getenv("WORK"), "etc", "smcgw.yaml")
	examined.rdma, e.host = h, examined
	e.gateways = func(context.Context) ([]machine.Found, error) { return nil, nil } // other tests have some
	e.rdma = func() (sysfs.RDMA, error) { return h, nil }
	os.Exit(run(context.Background(), e, os.Args[1:]))
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
		UpdateScripts:       golden.Updating(),
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", os.Getenv("GORACE")) // see the Makefile
			e.Setenv("VERSION", buildVersion())
			return nil
		},
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
	got, err := exitCode(ts.Exec(args[1], args[2:]...))
	ts.Check(err)
	if got != want {
		ts.Fatalf("exit status %d instead of %d", got, want)
	}
}

// cmdDaemon is "daemon [degraded|broken|restarts]": a process answers as a daemon without
// a datapath on $WORK/sock, with its state in $WORK/state, until the script ends or it is
// drained. A service listens at $SERVICE; the daemon says of its connections that they are
// carried, or not if it is degraded.
func cmdDaemon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 1 {
		ts.Fatalf("usage: daemon [degraded|broken|restarts]")
	}
	var program string
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, fakeProgram)); err == nil && program == "" {
			program = filepath.Join(dir, fakeProgram)
		}
	}
	cmd := exec.Command(program, append([]string{ts.MkAbs("sock"), ts.MkAbs("state")}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	ts.Defer(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n') // it listens
	ts.Check(err)
	ts.Setenv("SERVICE", strings.TrimSpace(line))
}

// fakeProgram is the name under which the test binary is the fake daemon.
const fakeProgram = "fake-daemon"

// fakeMain is the process of a fake daemon: its socket, its state directory, its kind.
func fakeMain() {
	d := &fakeDaemon{feed: report.NewFeed()}
	go d.happen(context.Background())
	if len(os.Args) > 3 {
		d.kind = os.Args[3]
	}
	cfg := config.Config{Admin: os.Args[1], StateDir: os.Args[2]}.WithDefaults()
	server, err := admin.Listen(cfg, "9.9.9", nil)
	if err == nil {
		err = d.serve()
	}
	if err == nil {
		server.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "smcgw_build_info{version=\"9.9.9\"} 1\n")
		})
		fmt.Println(d.service.Addr())
		ctx, cancel := context.WithCancel(context.Background())
		d.end = cancel
		err = server.Serve(ctx, d, d)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve accepts connections.
func (d *fakeDaemon) serve() (err error) {
	if d.service, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	go func() {
		for {
			c, err := d.service.Accept()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.clients = append(d.clients, c) // until the process ends
			d.mu.Unlock()
		}
	}()
	return nil
}

// served are the connections to the service.
func (d *fakeDaemon) served() (list []report.ConnInfo) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, c := range d.clients {
		info := report.ConnInfo{
			ID: uint64(100 + i), Proto: "tcp", Side: report.SideClient, State: "carrying", Carrier: report.CarrierShm,
			Local: c.RemoteAddr().(*net.TCPAddr).AddrPort(), Remote: c.LocalAddr().(*net.TCPAddr).AddrPort(),
		}
		if d.kind == "degraded" {
			info.State, info.Carrier, info.Reason, info.DecidedBy, info.End = "native", "", "peer_no_option", report.DecidedRemote, report.EndNative
		}
		list = append(list, info)
	}
	return list
}

// fakeDaemon is a Control with fixed answers.
type fakeDaemon struct {
	kind    string
	service net.Listener
	clients []net.Conn // guarded by mu
	mu      sync.Mutex
	off     bool
	end     context.CancelFunc // ends the process
	// over is of a drain, reports counts what was told about it.
	over    chan struct{}
	reports int
	// asked counts calls of Stats.
	asked uint64
	// listed counts those of Conns.
	listed uint64
	feed   *report.Feed
}

var _ admin.Control = (*fakeDaemon)(nil)

// happen tells of the same connections again and again.
func (d *fakeDaemon) happen(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
		for _, c := range sampleConns(report.ConnQuery{All: true}, 1) {
			switch c.End {
			case "":
				d.feed.Tell(report.EventCarried, c)
			case report.EndNative:
				d.feed.Tell(report.EventNative, c)
			default:
				d.feed.Tell(report.EventEnded, c)
			}
		}
	}
}

var errBroken = errors.New("broken as asked")

func (d *fakeDaemon) Status() report.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := report.Status{
		Mode: report.ModeEnforce, UptimeSeconds: 90,
		Flows:          map[report.Carrier]int{report.CarrierShm: 2},
		FlowsTotal:     map[report.Carrier]uint64{report.CarrierShm: 5},
		FallbacksTotal: map[string]uint64{"policy": 1, "peer_no_option": 7}, ResetsTotal: map[string]uint64{"wire_reset": 2},
		BytesTotal: map[report.Carrier]report.ByteCount{report.CarrierShm: {Tx: 3 << 20, Rx: 100}},
		Memory:     report.MemoryUse{UsedBytes: 1 << 20, ReservedBytes: 5 << 20, LimitBytes: 1 << 30}, Peers: 1,
		UDP: report.ProtoStats{
			Flows: map[report.Carrier]report.FlowCount{report.CarrierSoft: {Now: 1, Total: 3}},
			Bytes: map[report.Carrier]report.ByteCount{report.CarrierSoft: {Tx: 1000, Rx: 5000}},
		},
		FlowLimit: report.FlowLimit{Now: 900, Configured: 20000}, LogDropped: 4,
		Notes: []string{"soft1: receives on UDP port 4793: adapter mlx5_0/1 takes UDP port 4791"},
	}
	if d.off {
		st.Mode = report.ModeOff
	}
	if d.kind == "degraded" {
		st.Degraded = []string{"device_failed"}
	}
	return st
}

// Stats implements admin.Control. Everything grows from one call to the next.
func (d *fakeDaemon) Stats() report.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	n := d.asked
	started := time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC)
	if d.kind == "restarts" {
		started = started.Add(time.Duration(n) * time.Second)
	}
	return report.Stats{
		StartedAt: started, Seconds: float64(90 * n),
		Protocols: map[report.Proto]report.ProtoStats{
			report.ProtoTCP: {
				Flows:  map[report.Carrier]report.FlowCount{report.CarrierShm: {Now: 2, Total: 5 * n}},
				Bytes:  map[report.Carrier]report.ByteCount{report.CarrierShm: {Tx: 3 << 20 * n, Rx: 100 * n}},
				Native: map[string]uint64{"policy": n, "peer_no_option": 7},
			},
			report.ProtoUDP: {
				Flows:  map[report.Carrier]report.FlowCount{report.CarrierSoft: {Now: 1, Total: n}},
				Bytes:  map[report.Carrier]report.ByteCount{report.CarrierSoft: {Tx: 1000 * n, Rx: 5000 * n}},
				Native: map[string]uint64{"nat": n},
			},
		},
		Datagrams: report.DatagramStats{
			Sent: map[report.Carrier]uint64{report.CarrierSoft: 10 * n}, Received: map[report.Carrier]uint64{report.CarrierSoft: 12 * n},
			Delivered: 11 * n, Returned: 3 * n, Dropped: map[report.DatagramDrop]uint64{report.DropReassembly: n},
			Resolution: report.ResolutionStats{Queries: 2 * n, Answers: n, Asked: n, Answered: n},
		},
	}
}

func (d *fakeDaemon) Feed() *report.Feed { return d.feed }

// Conns implements admin.Control. Bytes grow from one call to the next.
func (d *fakeDaemon) Conns(q report.ConnQuery) []report.ConnInfo {
	d.mu.Lock()
	d.listed++
	n := d.listed
	d.mu.Unlock()
	conns := sampleConns(q, n)
	if q.Natives() {
		conns = append(conns, d.served()...)
	}
	return conns
}

// sampleConns are a carried connection, one that was, and one that stayed native.
func sampleConns(q report.ConnQuery, n uint64) (conns []report.ConnInfo) {
	carried := report.ConnInfo{
		ID: 1, Proto: "tcp", Side: report.SideClient,
		Local: netip.MustParseAddrPort("10.0.0.1:40000"), Remote: netip.MustParseAddrPort("10.0.0.2:6379"),
		State: "carrying", Carrier: report.CarrierSoft, TxBytes: 10 * n, RxBytes: 20 << 20 * n, AgeSeconds: 61.2,
	}
	if q.Details {
		carried.Pair = &report.PairInfo{
			QPN: 17, Sent: 10, Acknowledged: 8, Received: 20 << 20, Consumed: 20 << 20, Unsent: 3, RingBytes: 65536, Window: 0, Credits: 30, Blocked: "grant",
			RoundTripSeconds: 0.00025, Retransmits: 4,
		}
	}
	if q.Live() {
		conns = append(conns, carried)
	}
	if q.Ended() {
		carried.ID, carried.Pair, carried.State, carried.End = 3, nil, "closed", report.EndClosed
		carried.EndedAt = time.Date(2026, 1, 20, 9, 30, 0, 0, time.UTC)
		conns = append(conns, carried)
	}
	if q.Natives() {
		conns = append(conns, report.ConnInfo{
			ID: 2, Proto: "tcp", Side: report.SideClient,
			Local: netip.MustParseAddrPort("[fd00::1]:41000"), Remote: netip.MustParseAddrPort("[fd00::3]:80"),
			State: "native", Reason: "peer_no_option", DecidedBy: report.DecidedRemote, End: report.EndNative,
		})
	}
	return conns
}

func (d *fakeDaemon) Peers() []report.PeerInfo {
	return []report.PeerInfo{
		{Address: netip.MustParseAddr("10.0.0.2"), State: report.PeerCapable, Version: "0.1.0+hw", Mode: "enforce", Flows: 2, Carriers: []report.Carrier{report.CarrierShm}, CarriersFailed: []report.Carrier{report.CarrierSoft}, Use: report.PeerUse{Begun: 1, MemoryBytes: 64 << 20, ShmPeers: 1}},
		{Address: netip.MustParseAddr("fd00::3"), Port: 80, State: report.PeerBlackholed, Reason: "option_blackholed", ExpiresSeconds: 3600},
	}
}

func (d *fakeDaemon) Policy() report.PolicyReport {
	percent := 10.0
	observed := func(port uint16, carries bool, n, bulk uint64) report.ObservedService {
		return report.ObservedService{
			Side: report.SideClient, Port: port, Rule: map[bool]string{true: "redis", false: "default"}[carries], Carries: carries,
			Hosts: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, MoreHosts: port == 22, Connections: n, Ended: n, Bytes: report.ByteCount{Tx: 1000 * n, Rx: bulk},
			Bulk: min(bulk, 1), BulkBytes: bulk, BulkBytesPerSecond: float64(bulk) / 4,
		}
	}
	return report.PolicyReport{
		Mode: report.ModeObserve, Rollout: report.RolloutReport{Percent: 10}, Forgotten: 1,
		Rules: []report.RuleReport{
			{Name: "redis", Action: report.ActionAccelerate, Proto: report.ProtoTCP, Direction: report.DirectionBoth, Percent: &percent, Selected: 5, Passed: 45, Bytes: 5000},
			{Name: "default", Action: report.ActionPass, Passed: 9},
		},
		Observed: []report.ObservedService{
			observed(5201, false, 2, 4<<30), observed(22, false, 1, 1<<30),
			observed(6379, true, 5, 0), observed(80, false, 6, 0),
		},
	}
}

func (d *fakeDaemon) Devices() admin.DeviceList {
	return admin.DeviceList{RDMA: sampleRDMA(), Devices: []report.DeviceInfo{
		{
			Name: "shm0", Kind: report.DeviceShm, Carrier: report.CarrierShm, State: report.DeviceActive, MTU: 4096,
			Limits: report.DeviceLimits{Vectors: 2, MaxQP: 100}, Use: map[string]uint64{"qps": 2},
			Counters: map[string]uint64{"bells_sent": 9, "violations": 0},
		},
		{
			Name: "soft0", Kind: report.DeviceSoft, Carrier: report.CarrierSoft, State: report.DeviceFailed,
			Error: "bind 10.0.0.1:4791: address already in use",
		},
		{
			Name: "soft1", Kind: report.DeviceSoft, Carrier: report.CarrierSoft, State: report.DeviceActive, UDPPort: 4793, MTU: 1024,
			GIDs: []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")},
			Note: "receives on UDP port 4793: adapter mlx5_0/1 takes UDP port 4791",
		},
	}}
}

// sampleRDMA is a host with two ports, one of them without a link.
func sampleRDMA() sysfs.RDMA {
	port := sysfs.Port{
		Number: 1, LinkLayer: "Ethernet", State: "ACTIVE", Physical: "LinkUp", Rate: "100 Gb/sec (2X HDR)", TrafficClass: "Global tclass=106",
		GIDs: []sysfs.GID{
			{Index: 2, GID: netip.MustParseAddr("::ffff:10.0.0.1"), Type: sysfs.IBorRoCEv1, Device: "ens1f0"},
			{Index: 3, GID: netip.MustParseAddr("::ffff:10.0.0.1"), Type: sysfs.RoCEv2, Device: "ens1f0"},
		},
		Priorities: &sysfs.Priorities{PFC: []int{3}, DSCP: map[int]int{26: 3, 48: 6}},
	}
	first := sysfs.Adapter{
		Name: "mlx5_0", Driver: "mlx5_core", PCI: "0000:3b:00.0", NUMA: 1, Node: "CA", GUID: "b83f:d203:0012:3456", Board: "MT_0000000359",
		Firmware: "22.41.1000", Verbs: &sysfs.Node{Path: "/dev/infiniband/uverbs0"}, Use: map[string]uint64{"qp": 2},
		Limits: map[string]uint64{"hca_object": 2000}, Ports: []sysfs.Port{port},
	}
	second := first
	second.Name, second.Limits, second.Use = "mlx5_1", nil, nil
	second.Verbs = &sysfs.Node{Path: "/dev/infiniband/uverbs1", Problem: "no permission to read and write it"}
	second.Ports = []sysfs.Port{{Number: 1, LinkLayer: "Ethernet", State: "DOWN", Physical: "Disabled", Rate: "40 Gb/sec (4X QDR)", GIDs: []sysfs.GID{}, Unusable: "the port is DOWN"}}
	return sysfs.RDMA{Namespaces: "shared", Memlock: 8 << 20, Adapters: []sysfs.Adapter{first, second}}
}

func (d *fakeDaemon) Demote(q admin.DemoteQuery) (int, error) {
	if slices.Contains(q.IDs, 99999) {
		return 0, nil
	}
	return max(1, 2*len(q.IDs)), nil
}

func (d *fakeDaemon) Set(s admin.Setting) error {
	if s.Value == "loud" {
		return fmt.Errorf("%w: %q is no level", admin.ErrSetting, s.Value)
	}
	return nil
}

func (d *fakeDaemon) OptIn(o config.OptIn) (func(), error) {
	if d.kind == "broken" {
		return nil, fmt.Errorf("%w: no room", config.ErrOptIn)
	}
	return func() {}, nil
}

func (d *fakeDaemon) FlushPeers() (int, error) {
	if d.kind == "broken" {
		return 0, errBroken
	}
	return 1, nil
}

// Renew implements admin.Control. No other gateway can take over.
func (d *fakeDaemon) Renew(_ context.Context, always bool) (replaced bool, err error) {
	if always || d.kind == "broken" {
		return false, errBroken
	}
	return false, nil
}

func (d *fakeDaemon) Try(config.Trial) (func(), error) {
	if d.kind == "broken" {
		return nil, errBroken
	}
	return func() {}, nil
}

// Drain implements admin.Control: three connections, of which none is left at the
// second report, or one if the daemon is broken.
func (d *fakeDaemon) Drain(time.Duration) (<-chan struct{}, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = make(chan struct{})
	return d.over, nil
}

func (d *fakeDaemon) Draining() *report.DrainInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over == nil {
		return nil
	}
	i := &report.DrainInfo{Schema: report.DrainSchema, Flows: 3, RemainingSeconds: 60}
	if d.reports++; d.reports == 2 {
		i = &report.DrainInfo{Schema: report.DrainSchema, Done: true}
		if d.kind == "broken" {
			i.Flows = 1
		}
		close(d.over)
		d.end()
	}
	return i
}

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

// Snapshot implements report.Source.
func (d *fakeDaemon) Totals() report.Snapshot { return d.Snapshot() }

func (d *fakeDaemon) Snapshot() report.Snapshot { return report.Snapshot{} }
