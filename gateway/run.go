package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"golang.org/x/sync/errgroup"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/gateway/internal/admission"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/internal/sockets"
	"github.com/smcgw/smcgw/gateway/internal/upgrade"
	"github.com/smcgw/smcgw/gateway/metrics"
	"github.com/smcgw/smcgw/gateway/page"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

// Supervisor keeps the steering alive a little longer than the daemon, so that
// the gateway's sockets die first and the applications get their reset.
type Supervisor interface {
	// Protect hands duplicates of hold and of the heartbeat map to the
	// guardian and returns when it has them. It is called once, when the
	// datapath is open and before the first flow is carried; the first beat
	// must follow within ten seconds. The files stay the caller's and must
	// stay open until Release: a guardian that dies is replaced and gets them
	// again.
	Protect(heartbeat *os.File, hold []*os.File) error
	// Release makes the guardian close its duplicates and returns when it has;
	// it is called on a clean stop, after the last flow has ended and before
	// the datapath is closed.
	Release() error
}

// RunOptions are what a daemon needs besides its configuration.
type RunOptions struct {
	// Logger receives what happens. Default: discards.
	Logger *slog.Logger
	// LogLevel is that of Logger, which settings and reloads change; nil: it stays.
	LogLevel *slog.LevelVar
	// LogDropped counts the lines that Logger has lost; nil: it loses none.
	LogDropped func() uint64
	// Version is what status reports.
	Version string
	// Supervisor keeps the steering alive a little longer than this process;
	// nil: nothing does.
	Supervisor Supervisor
	// Manager is told once connections are looked at, and what follows; nil: there is none.
	Manager *process.ServiceManager
	// Reload asks for the configuration to be read again by Load, which may be
	// other than the first in mode, policy and some limits. One that is refused
	// changes nothing. Both may be nil.
	Reload <-chan os.Signal
	Load   func() (config.Config, error)
	// Program is started to take over from this daemon; nil: nothing is.
	Program *process.Program
	// TakeOver is to take over from the daemon on the admin socket, if there is one:
	// it serves its connections for DrainTimeout at most (0: what its configuration
	// says), new ones are this daemon's.
	TakeOver     bool
	DrainTimeout time.Duration
	// Faults are those that a test wants; nil: none.
	Faults faults.Injector
}

// Run is the daemon on a real host, behind Confine: it opens the datapath in the
// calling thread's network namespace, carries until ctx ends or it has drained, and leaves
// nothing behind. It needs the capabilities of docs/OPERATIONS.md "What it needs".
func Run(ctx context.Context, cfg config.Config, opts RunOptions) error {
	log := opts.logger()
	if err := admission.RequireDescriptors(); err != nil {
		return err
	}
	before, server, err := upgrade.Begin(ctx, cfg, upgrade.Options{
		Logger: log, Version: opts.Version, TakeOver: opts.TakeOver, DrainTimeout: opts.DrainTimeout, Main: mainProcess(opts.Supervisor),
		BeatEvery: loop.BeatInterval, Faults: opts.Faults,
	})
	if err != nil {
		return err
	}
	defer before.Close()
	if server != nil {
		defer func() { _ = server.Close() }()
	}
	ns, err := process.OpenLegs()
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	steering := policy.Translate(cfg, log)
	before.Place(&steering)
	steering.Legs = ns
	if steering.CgroupPath == "" {
		steering.CgroupPath = process.Cgroup()
	}
	dp, err := ebpf.Open(steering)
	if err != nil {
		return fmt.Errorf("datapath: %w", err)
	}
	kernel := sockets.New(ns, dp.SetListener)
	defer func() { _ = kernel.Close() }()
	err = runSteered(ctx, cfg, opts, before, server, dp, kernel)
	return errors.Join(err, dp.Close())
}

// mainProcess is the guardian, which has started this process, or this process.
func mainProcess(s Supervisor) int {
	if s == nil {
		return os.Getpid()
	}
	return os.Getppid()
}

// RunOn is the daemon on any host, such as one that exists in memory only.
func RunOn(ctx context.Context, cfg config.Config, h Host, opts RunOptions) error {
	server, err := admin.Listen(cfg, opts.Version, opts.logger())
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	d := &daemon{cfg: cfg, opts: opts, log: opts.logger(), admin: server}
	return d.run(ctx, h)
}

func (o RunOptions) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Logger
}

// runSteered puts the gateway on an open datapath, under its guardian. A successor
// has the other gateway yield when that is all there; its server is nil before.
func runSteered(ctx context.Context, cfg config.Config, opts RunOptions, before *upgrade.Predecessor, server *admin.Server, dp *ebpf.Datapath, kernel *sockets.Legs) error {
	hand, err := dp.Handover()
	if err != nil {
		return fmt.Errorf("hand over to the guardian: %w", err)
	}
	defer func() { _ = hand.Close() }()
	if opts.Supervisor != nil {
		if err := opts.Supervisor.Protect(hand.Heartbeat, hand.Hold); err != nil {
			return fmt.Errorf("guardian: %w", err)
		}
	}
	if server == nil {
		if server, err = before.Yield(ctx, cfg, dp.Heartbeat); err != nil {
			return err
		}
		defer func() { _ = server.Close() }()
	}
	h, err := realHost(dp, kernel)
	if err != nil {
		return err
	}
	d := &daemon{cfg: cfg, opts: opts, log: opts.logger(), admin: server, before: before}
	err = d.run(ctx, h)
	if opts.Supervisor != nil {
		err = errors.Join(err, opts.Supervisor.Release())
	}
	return errors.Join(err, ebpf.StopHeartbeat(hand.Heartbeat))
}

func realHost(dp *ebpf.Datapath, kernel *sockets.Legs) (Host, error) {
	id, err := kernelID()
	if err != nil {
		return Host{}, err
	}
	link, err := link.TUN(dp.WireTUN(), dp.WireMTU())
	if err != nil {
		return Host{}, fmt.Errorf("wire link: %w", err)
	}
	return Host{Steering: dp, Legs: kernel, Link: link, Addrs: dp.Addrs, Devices: dp.Looked, Route: dp.RouteDevice, RoCE: sysfs.RoCE, RDMA: sysfs.Read, Priority: ebpf.Priority, ID: id, Datagrams: dp, AppTUN: dp.AppTUN(), Beside: dp}, nil
}

// daemon is one run of the gateway.
type daemon struct {
	cfg    config.Config
	opts   RunOptions
	log    *slog.Logger
	admin  *admin.Server
	before *upgrade.Predecessor // nil: none
	page   *page.Page
}

func (d *daemon) run(ctx context.Context, h Host) error {
	h.faults = d.opts.Faults
	g, err := newGateway(d.cfg, h, d.log)
	if err != nil {
		return err
	}
	g.renewal.Load, g.renewal.Program, g.renewal.Manager = d.opts.Load, d.opts.Program, d.opts.Manager
	if d.opts.LogDropped != nil {
		g.logDropped = d.opts.LogDropped
	}
	g.logLevel = d.opts.LogLevel
	about := page.About{Host: hostName(), Version: d.opts.Version, Rules: func() int { return len(g.live.Load().Policy) }}
	shown := page.New(g, about)
	d.admin.Page, d.page = shown, shown
	d.admin.Metrics = metrics.Handler(g, d.opts.Version)
	err = d.serve(ctx, g)
	g.close()
	d.stopped(g, err)
	return err
}

// stopped says that the gateway has ended, and how.
func (d *daemon) stopped(g *gateway, err error) {
	var served uint64
	for _, n := range g.Stats().Protocols[config.ProtoTCP].Flows {
		served += n.Total
	}
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelError
	}
	d.log.Log(context.Background(), level, "gateway has stopped", "uptime", time.Since(g.started).Round(time.Millisecond), "carried", served, "error", err)
}

// drainGrace is how long offers that are already on the wire may still be answered
// and fall back before a clean stop goes on.
const drainGrace = 100 * time.Millisecond

// serve runs the loops around the gateway until ctx ends or one of them fails. The
// heartbeat outlives the others: what is under way falls back under it.
func (d *daemon) serve(ctx context.Context, g *gateway) error {
	beat, stopBeat := context.WithCancel(context.Background())
	defer stopBeat()
	ctx, stopLoops := context.WithCancel(ctx)
	defer stopLoops()
	group, loops := errgroup.WithContext(ctx)
	group.Go(func() error { return d.admin.Serve(loops, g, g) })
	events, stopEvents := context.WithCancel(context.Background())
	defer stopEvents()
	var tail errgroup.Group
	tail.Go(func() error { g.heart.Run(beat); return nil })
	tail.Go(func() error { g.choreLoop(beat); return nil })
	tail.Go(func() error { conn.StallLoop(beat, g.cfg.Limits.StallTimeout.Duration(), g.all); return nil })
	tail.Go(func() error { g.env.SilenceLoop(beat); return nil })
	tail.Go(func() error {
		err := ignoreCanceled(g.steer.Events(events, g.onEvent))
		if err != nil { // a gateway that hears of nothing must not go on
			stopLoops()
		}
		return err
	})
	group.Go(func() error { return g.awaitDrain(loops) })
	group.Go(func() error { return d.open(loops, g) })
	group.Go(func() error { d.page.Run(loops); return nil })
	if d.opts.Load != nil {
		tail.Go(func() error { g.renewal.Loop(beat, d.opts.Reload); return nil })
	}
	tail.Go(func() error { d.opts.Manager.Watch(beat, g.pulse.Last); return nil })
	err := ignoreCanceled(group.Wait())
	d.opts.Manager.Stopping()
	if errors.Is(err, errDrained) {
		err = nil
	}
	g.quiesce()
	time.Sleep(drainGrace)
	g.close()
	stopBeat()
	stopEvents()
	return errors.Join(err, tail.Wait())
}

// open lets connections in, when everything else runs.
func (d *daemon) open(ctx context.Context, g *gateway) error {
	g.heart.Beat(time.Now())
	if err := d.before.TakeOver(ctx, g.host.Beside); err != nil {
		return err
	}
	if now := g.limits.MaxFlows(); now < d.cfg.Limits.MaxFlows {
		d.log.Warn("fewer flows than limits.max_flows: not enough descriptors", "flows", now, "max_flows", d.cfg.Limits.MaxFlows, "descriptors", process.DescriptorLimit())
	}
	d.opts.Manager.Ready()
	d.up(g)
	return nil
}

// up says that the gateway looks at connections, and what it has found.
func (d *daemon) up(g *gateway) {
	mode := d.cfg.Mode
	if admin.NewOffFlag(d.cfg.StateDir).IsSet() {
		mode = config.ModeOff
	}
	var network, rdma []string
	if g.host.Devices != nil {
		network, _ = g.host.Devices()
	}
	for _, dev := range g.devices() {
		if dev.State == admin.DeviceActive {
			rdma = append(rdma, dev.Name)
		}
	}
	d.log.Info("gateway is up", "version", d.opts.Version, "mode", mode, "devices", network, "rdma_devices", rdma,
		"rules", len(d.cfg.Policy), "shards", len(g.shards))
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// quiesce takes no new connection; offers on the wire fall back as their answers come.
func (g *gateway) quiesce() {
	g.stopping.Store(true)
	g.dgrams.Load().Quiesce(negotiate.ReasonDrained)
	if err := g.steer.SetMode(ebpf.ModeOff); err != nil {
		g.log.Warn("stop offering", "error", err)
	}
}

// hostName is that of the machine, for people.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return name
}

// kernelID names the kernel this process runs under without telling its boot
// id: two gateways with the same one can share memory.
func kernelID() (id [16]byte, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id, fmt.Errorf("boot id: %w", err)
	}
	m := hmac.New(sha256.New, []byte("smcgw host id"))
	m.Write([]byte(strings.TrimSpace(string(boot))))
	copy(id[:], m.Sum(nil))
	return id, nil
}
