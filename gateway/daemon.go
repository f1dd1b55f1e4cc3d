package gateway

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/upgrade"
	"github.com/smcgw/smcgw/gateway/process"
)

// daemon is one run of the program. It has one gateway at a time: one that carries, with
// devices and ports, or one that counts, with nothing but programs. Another one takes the
// place of the first when the mode asks for it.
//
//	counting ── reload: enforce ──► carrying
//	    ▲                              │ reload: observe or off
//	    └── nothing is carried ── carrying on, new connections native
type daemon struct {
	cfg    config.Config
	opts   RunOptions
	log    *slog.Logger
	admin  *admin.Server
	before *upgrade.Predecessor // nil: none
	ground *ground              // nil: the gateway stays what it is

	now       admin.Board
	stopAdmin context.CancelFunc
	adminOver chan error // of its end
}

// posting is a gateway on its host.
type posting struct {
	*site
	*gateway
	asked bool // by a reload, which is in force when it serves
}

// errReplaced ends the loops of a gateway in whose place another one is to serve.
var errReplaced = errors.New("replaced")

// run has gateways serve until ctx ends, one of them fails or has drained. at is the
// daemon's to leave.
func (d *daemon) run(ctx context.Context, at *site) error {
	g, err := newGateway(d.cfg, d.furnished(at), d.log)
	if err != nil {
		return errors.Join(err, at.release(), at.leave())
	}
	g.logLevel = d.opts.LogLevel
	if d.opts.LogDropped != nil {
		g.logDropped = d.opts.LogDropped
	}
	for p := (&posting{site: at, gateway: g}); ; {
		next, err := d.serve(ctx, p)
		p.gateway.close()
		err = errors.Join(err, p.release())
		if next != nil && err == nil {
			err = next.inherit(p.gateway)
		}
		err = errors.Join(err, p.leave())
		if next == nil {
			return err
		}
		if err == nil {
			err = next.protect()
		}
		if err != nil {
			next.gateway.close()
			return errors.Join(err, d.endAdmin(), next.leave())
		}
		p = next
	}
}

// furnished is the host with what the daemon is asked to add.
func (d *daemon) furnished(at *site) Host {
	at.faults = d.opts.Faults
	return at.Host
}

// prepare opens another gateway, which leaves connections alone until it serves.
func (d *daemon) prepare(cfg config.Config) (*posting, error) {
	at, err := d.ground.site(cfg, true)
	if err != nil {
		return nil, err
	}
	g, err := newGateway(cfg, d.furnished(at), d.log)
	if err != nil {
		return nil, errors.Join(err, at.leave())
	}
	return &posting{site: at, gateway: g}, nil
}

// drainGrace is how long offers that are already on the wire may still be answered
// and fall back before a clean stop goes on.
const drainGrace = 100 * time.Millisecond

// serve runs the loops around a gateway until ctx ends, one of them fails, or next is to
// take its place. The heartbeat outlives the others: what is under way falls back under it.
func (d *daemon) serve(ctx context.Context, p *posting) (next *posting, err error) {
	g := p.gateway
	beat, stopBeat := context.WithCancel(context.Background())
	defer stopBeat()
	ctx, stopLoops := context.WithCancel(ctx)
	defer stopLoops()
	group, loops := errgroup.WithContext(ctx)
	d.now.Hang(g)
	d.beginAdmin()
	group.Go(func() error { return d.watchAdmin(loops) })
	events, stopEvents := context.WithCancel(context.Background())
	defer stopEvents()
	var tail errgroup.Group
	tail.Go(func() error { g.beatLoop(beat); return nil })
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
	opened := make(chan struct{})
	group.Go(func() error { return g.awaitDrain(loops) })
	group.Go(func() error {
		err := d.open(loops, p)
		if err == nil {
			close(opened)
		}
		return err
	})
	group.Go(func() error {
		select {
		case <-opened:
		case <-loops.Done():
			return nil
		}
		next = d.modeLoop(loops, g)
		if next == nil {
			return nil
		}
		return errReplaced
	})
	tail.Go(func() error { d.opts.Manager.Watch(beat, g.pulse.Last); return nil })
	err = ignoreCanceled(group.Wait())
	replaced := errors.Is(err, errReplaced)
	if !replaced {
		err = errors.Join(err, d.endAdmin())
		d.opts.Manager.Stopping()
	}
	if errors.Is(err, errDrained) || replaced {
		err = nil
	}
	g.quiesce()
	if g.carries() {
		time.Sleep(drainGrace)
	}
	g.close()
	stopBeat()
	stopEvents()
	err = errors.Join(err, tail.Wait())
	if next != nil && (err != nil || !replaced) {
		next.gateway.close()
		err = errors.Join(err, next.leave(), d.endAdmin())
		next = nil
	}
	return next, err
}

// beginAdmin has the admin server answer, if it does not yet.
func (d *daemon) beginAdmin() {
	if d.adminOver != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stopAdmin, d.adminOver = stop, make(chan error, 1)
	go func() {
		defer close(d.adminOver)
		d.adminOver <- d.admin.Serve(ctx, &d.now, &d.now)
	}()
}

// watchAdmin returns why the admin server has ended, or when ctx does.
func (d *daemon) watchAdmin(ctx context.Context) error {
	select {
	case err := <-d.adminOver:
		return err
	case <-ctx.Done():
		return nil
	}
}

// endAdmin ends the admin server.
func (d *daemon) endAdmin() error {
	d.stopAdmin()
	return ignoreCanceled(<-d.adminOver)
}

// open lets connections in, when everything else runs.
func (d *daemon) open(ctx context.Context, p *posting) error {
	g := p.gateway
	g.beatOnce(g.loops(), time.Now())
	if p.past == nil {
		if err := d.before.TakeOver(ctx, g.host.Beside); err != nil {
			return err
		}
	} else if err := g.host.Beside.Activate(); err != nil {
		return err
	}
	if now := g.flowLimit(); g.carries() && now < g.cfg.Limits.MaxFlows {
		d.log.Warn("fewer flows than limits.max_flows: not enough descriptors", "flows", now, "max_flows", g.cfg.Limits.MaxFlows, "descriptors", process.DescriptorLimit())
	}
	mode := g.cfg.Mode
	off := admin.NewOffFlag(d.cfg.StateDir).IsSet()
	if off {
		mode = config.ModeOff
	}
	if p.past != nil {
		if err := g.SetOff(off); err != nil {
			return err
		}
	}
	if p.asked {
		d.noteReload(g, g.cfg, nil)
	}
	d.opts.Manager.Ready()
	d.log.Info("gateway is up", "mode", mode, "devices", d.cfg.Devices, "shards", len(g.shards))
	return nil
}

// idleEvery is how often it is looked whether a gateway that should carry nothing still
// does.
const idleEvery = 200 * time.Millisecond

// modeLoop reads the configuration again when it is told to, until ctx ends or the mode
// asks for another gateway, which it returns.
func (d *daemon) modeLoop(ctx context.Context, g *gateway) *posting {
	idle := time.NewTicker(idleEvery)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-idle.C:
			if next := d.settle(g); next != nil {
				return next
			}
		case <-d.opts.Reload:
			if next := d.reload(g); next != nil {
				return next
			}
		}
	}
}

// settle prepares a gateway that counts in place of one that carries nothing any more,
// as its mode wants.
func (d *daemon) settle(g *gateway) *posting {
	now := g.live.Load()
	if d.ground == nil || !g.carries() || carries(now.Mode) || g.busy() {
		return nil
	}
	next, err := d.prepare(now.Config)
	if err != nil {
		d.log.Warn("devices and ports stay although nothing is carried", "error", err)
		return nil
	}
	d.log.Info("nothing is carried: devices and ports go", "mode", now.Mode)
	return next
}

// busy reports whether the gateway has to stay what it is.
func (g *gateway) busy() bool {
	if g.stopping.Load() || g.drainer.Draining() || g.host.Beside.HasNeighbour() {
		return true
	}
	flows, lingering, _ := g.left()
	return flows+lingering > 0
}

// reload reads the configuration again. What is returned is to take the place of g.
func (d *daemon) reload(g *gateway) *posting {
	if d.opts.Load == nil {
		return nil
	}
	d.opts.Manager.Reloading()
	cfg, err := d.opts.Load()
	if err == nil && d.ground != nil && carries(cfg.Mode) && !g.carries() {
		var next *posting
		if err = g.cfg.CheckReload(cfg, true, true); err == nil {
			next, err = d.prepare(cfg)
		}
		if err == nil {
			next.asked = true
			return next
		}
	} else if err == nil {
		err = g.reload(cfg)
	}
	d.noteReload(g, cfg, err)
	d.opts.Manager.Ready()
	return nil
}

// noteReload tells what came of a reload.
func (d *daemon) noteReload(g *gateway, cfg config.Config, err error) {
	g.reloads.Note(err, time.Now())
	if err != nil {
		d.log.Error("configuration refused, the one before stays in force", "error", err)
	} else {
		d.log.Info("configuration in force", "mode", cfg.Mode, "rules", len(cfg.Policy))
	}
}
