package gateway

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/handover"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/internal/promotion"
	"github.com/smcgw/smcgw/gateway/page"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
)

// daemon is one run of the program: a gateway with its interfaces to operators, the service
// manager and other daemons.
type daemon struct {
	cfg       config.Config
	opts      RunOptions
	log       *slog.Logger
	admin     *admin.Server
	before    *handover.Predecessor // nil: there is none
	promotion *promotion.Service    // nil: programs with the library are not served
	page      *page.Page

	stopAdmin context.CancelFunc
	adminOver chan error     // receives the result of the admin server
	beside    sync.WaitGroup // goroutines that run as long as the admin server
}

var errStopping = errors.New("the gateway is going")

// run makes a gateway serve until ctx ends, it fails, or it has drained. It takes over at and
// leaves it.
func (d *daemon) run(ctx context.Context, at *site) error {
	at.faults, at.promotion = d.opts.Faults, d.promotion
	var g *gateway
	keys, err := process.Through(ctx, new(process.Lane), func() ([][]byte, error) { return config.LoadKeys(d.cfg.Security.PSKFile) })
	if err == nil {
		g, err = newGateway(d.cfg, at, keys, d.log)
	}
	if err != nil {
		return errors.Join(ignoreCanceled(err), at.release(), at.leave())
	}
	d.equip(g)
	err = errors.Join(d.serve(ctx, g), at.release())
	d.stopped(g, err)
	return errors.Join(err, at.leave())
}

// equip gives the gateway what the daemon provides.
func (d *daemon) equip(g *gateway) {
	g.setLogLevel = d.opts.SetLogLevel
	if d.opts.LogDropped != nil {
		g.logDropped = d.opts.LogDropped
	}
	g.incumbent.Place, d.admin.Handover = d.admin, g.incumbent.Converse
	g.renewal.Load, g.renewal.Program, g.renewal.Manager, g.renewal.Old = d.opts.Load, d.opts.Program, d.opts.Manager, d.admin.Predecessor
	d.page = page.New(g, page.About{Host: process.HostName(), Version: d.opts.Version, Rules: func() int { return len(g.live.Load().Policy) }})
	d.admin.Page, d.admin.Metrics = d.page, page.Metrics(g, admin.NewVersionInfo(d.opts.Version))
}

// stopped logs that the gateway has ended, and how.
func (d *daemon) stopped(g *gateway, err error) {
	var served uint64
	for _, n := range g.Stats().Protocols[report.ProtoTCP].Flows {
		served += n.Total
	}
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelError
	}
	d.log.Log(context.Background(), level, "gateway has stopped", "uptime", time.Since(g.started).Round(time.Millisecond), "carried", served, "error", err)
}

// drainGrace is how long offers already on the wire may still be answered and fall back
// before a clean stop continues.
const drainGrace = 100 * time.Millisecond

// serve runs the loops around the gateway until ctx ends or one of them fails. The heartbeat
// outlives the others, so that pending connections can still fall back.
func (d *daemon) serve(ctx context.Context, g *gateway) error {
	beat, stopBeat := context.WithCancel(context.Background())
	defer stopBeat()
	ctx, stopLoops := context.WithCancel(ctx)
	defer stopLoops()
	group, loops := errgroup.WithContext(ctx)
	d.beginAdmin(g)
	group.Go(func() error { return d.watchAdmin(loops) })
	events, stopEvents := context.WithCancel(context.Background())
	defer stopEvents()
	var tail errgroup.Group
	tail.Go(func() error { g.heart.Run(beat); return nil })
	tail.Go(func() error { g.choreLoop(beat); return nil })
	tail.Go(func() error {
		conn.StallLoop(beat, g.cfg.Limits.StallTimeout, func() []*conn.Flow { return g.engine().all() })
		return nil
	})
	tail.Go(func() error {
		err := ignoreCanceled(g.steer.Events(events, g.onEvent))
		if err != nil { // a gateway without events must not go on
			stopLoops()
		}
		return err
	})
	tail.Go(func() error { d.opts.Manager.Watch(beat, g.pulse.Last); return nil })
	group.Go(func() error {
		if err := d.open(loops, g); err != nil || loops.Err() != nil {
			return err
		}
		return g.awaitDrain(loops) // a takeover has finished before
	})
	err := ignoreCanceled(group.Wait())
	err = errors.Join(err, d.endAdmin())
	d.opts.Manager.Stopping()
	if errors.Is(err, errDrained) {
		err = nil
	}
	g.quiesce()
	if g.carries() {
		time.Sleep(drainGrace)
	}
	g.close()
	stopBeat()
	stopEvents()
	return errors.Join(err, tail.Wait())
}

// beginAdmin starts the admin server, and reloads on signals.
func (d *daemon) beginAdmin(g *gateway) {
	ctx, stop := context.WithCancel(context.Background())
	d.stopAdmin, d.adminOver = stop, make(chan error, 1)
	d.beside.Go(func() { d.page.Run(ctx) })
	if d.opts.Load != nil {
		d.beside.Go(func() { g.renewal.Loop(ctx, d.opts.Reload) })
	}
	go func() {
		defer close(d.adminOver)
		d.adminOver <- d.admin.Serve(ctx, g, g)
	}()
}

// watchAdmin returns why the admin server has ended, or nil when ctx ends.
func (d *daemon) watchAdmin(ctx context.Context) error {
	select {
	case err := <-d.adminOver:
		return err
	case <-ctx.Done():
		return nil
	}
}

// endAdmin stops what beginAdmin has started.
func (d *daemon) endAdmin() error {
	d.stopAdmin()
	d.beside.Wait()
	return ignoreCanceled(<-d.adminOver)
}

// open lets connections in, once everything else is running.
func (d *daemon) open(ctx context.Context, g *gateway) error {
	g.heart.Beat(time.Now())
	select {
	case <-d.admin.Told(): // before the predecessor is told
	case <-ctx.Done():
		return nil
	}
	if err := d.before.TakeOver(ctx, g); err != nil {
		return err
	}
	if now := peers.FlowsWithin(g.cfg.Limits.MaxFlows); g.carries() && now < g.cfg.Limits.MaxFlows {
		d.log.Warn("fewer flows than limits.max_flows: not enough descriptors", "flows", now, "max_flows", g.cfg.Limits.MaxFlows, "descriptors", process.DescriptorLimit())
	}
	d.opts.Manager.Ready()
	d.up(g)
	return nil
}

// up logs that the gateway handles connections, and what it has found.
func (d *daemon) up(g *gateway) {
	g.settlePromotion()
	g.servePromotion()
	mode := g.cfg.Mode
	if g.off.Load() {
		mode = report.ModeOff
	}
	var network, rdma []string
	if g.host.Devices != nil {
		network, _ = g.host.Devices()
	}
	for _, dev := range g.engine().devices() {
		if dev.State == report.DeviceActive {
			rdma = append(rdma, dev.Name)
		}
	}
	d.log.Info("gateway is up", "version", d.opts.Version, "mode", mode, "devices", network, "rdma_devices", rdma,
		"rules", len(g.cfg.Policy), "shards", g.cfg.Loops(runtime.NumCPU()))
}
