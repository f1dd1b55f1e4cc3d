package gateway

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/handover"
	"github.com/smcgw/smcgw/gateway/internal/promotion"
	"github.com/smcgw/smcgw/gateway/metrics"
	"github.com/smcgw/smcgw/gateway/page"
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
	cfg       config.Config
	opts      RunOptions
	log       *slog.Logger
	admin     *admin.Server
	before    *handover.Predecessor // nil: none
	ground    *ground               // nil: the gateway stays what it is
	promotion *promotion.Service    // nil: programs with the library are not served

	now      admin.Board
	serving  atomic.Pointer[gateway] // the one on the board
	page     *page.Page
	requests chan request // of reloads, to the gateway that serves

	stopAdmin context.CancelFunc
	stopping  <-chan struct{} // closed by stopAdmin
	adminOver chan error      // of its end
	beside    sync.WaitGroup  // what runs as long as the admin server
}

// request asks for another configuration.
type request struct {
	config.Config
	keys   [][]byte
	answer chan error // has room for one
}

// posting is a gateway on its host.
type posting struct {
	*site
	*gateway
	asked chan<- error // by a reload, which is in force when it serves; nil: by none
	done  func()       // called when it serves: another process may take over again; nil: for the first
}

var (
	// errReplaced ends the loops of a gateway in whose place another one is to serve.
	errReplaced = errors.New("replaced")
	errStopping = errors.New("the gateway is going")
)

// run has gateways serve until ctx ends, one of them fails or has drained. at is the
// daemon's to leave.
func (d *daemon) run(ctx context.Context, at *site) error {
	var g *gateway
	keys, err := process.Through(ctx, new(process.Lane), func() ([][]byte, error) { return config.LoadKeys(d.cfg.Security.PSKFile) })
	if err == nil {
		g, err = newGateway(d.cfg, d.furnished(at, keys), d.log)
	}
	if err != nil {
		return errors.Join(ignoreCanceled(err), at.release(), at.leave())
	}
	d.equip(g)
	for p := (&posting{site: at, gateway: g}); ; {
		next, err := d.serve(ctx, p)
		p.close()
		err = errors.Join(err, p.release())
		if next != nil && err == nil {
			err = next.inherit(p.gateway)
		}
		if next == nil {
			d.stopped(p.gateway, err)
			return errors.Join(err, p.leave())
		}
		err = errors.Join(err, p.leave())
		if err == nil {
			err = next.protect()
		}
		if err != nil {
			next.close()
			return errors.Join(err, d.endAdmin(), next.leave())
		}
		p = next
	}
}

// equip gives the first gateway what the daemon has for it, and those that take its place.
func (d *daemon) equip(g *gateway) {
	g.setLogLevel = d.opts.SetLogLevel
	if d.opts.LogDropped != nil {
		g.logDropped = d.opts.LogDropped
	}
	d.requests = make(chan request)
	g.renewal.Apply, g.renewal.Load, g.renewal.Program, g.renewal.Manager = d.apply, d.opts.Load, d.opts.Program, d.opts.Manager
	g.renewal.Follows = d.cfg.CheckReplace
	d.page = page.New(&d.now, page.About{Host: process.HostName(), Version: d.opts.Version, Rules: func() int { return len(d.serving.Load().live.Load().Policy) }})
	d.admin.Page, d.admin.Metrics = d.page, metrics.Handler(&d.now, d.opts.Version)
}

// stopped says that the last gateway has ended, and how.
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

// furnished is the host with what the daemon is asked to add.
func (d *daemon) furnished(at *site, keys [][]byte) Host {
	at.faults, at.keys, at.promotion = d.opts.Faults, keys, d.promotion
	return at.Host
}

// prepare opens another gateway, which leaves connections alone until it serves.
func (d *daemon) prepare(cfg config.Config, keys [][]byte) (*posting, error) {
	at, err := d.ground.site(cfg, true)
	if err != nil {
		return nil, err
	}
	g, err := newGateway(cfg, d.furnished(at, keys), d.log)
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
	d.serving.Store(g)
	d.now.Hang(g)
	d.beginAdmin(g.renewal)
	group.Go(func() error { return d.watchAdmin(loops) })
	events, stopEvents := context.WithCancel(context.Background())
	defer stopEvents()
	var tail errgroup.Group
	tail.Go(func() error { g.heart.Run(beat); return nil })
	tail.Go(func() error { g.choreLoop(beat); return nil })
	tail.Go(func() error { conn.StallLoop(beat, g.cfg.Limits.StallTimeout.Duration(), g.all); return nil })
	tail.Go(func() error {
		err := ignoreCanceled(g.steer.Events(events, g.onEvent))
		if err != nil { // a gateway that hears of nothing must not go on
			stopLoops()
		}
		return err
	})
	opened := make(chan struct{})
	group.Go(func() error {
		select {
		case <-opened: // a takeover comes to its end before
			return g.awaitDrain(loops)
		case <-loops.Done():
			return nil
		}
	})
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
		next.close()
		err = errors.Join(err, next.leave(), d.endAdmin())
		next = nil
	}
	return next, err
}

// beginAdmin has the admin server answer, and signals ask for reloads, if they do not yet.
func (d *daemon) beginAdmin(r *handover.Renewal) {
	if d.adminOver != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stopAdmin, d.stopping, d.adminOver = stop, ctx.Done(), make(chan error, 1)
	d.beside.Go(func() { d.page.Run(ctx) })
	if d.opts.Load != nil {
		d.beside.Go(func() { r.Loop(ctx, d.opts.Reload) })
	}
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

// endAdmin ends what beginAdmin has begun.
func (d *daemon) endAdmin() error {
	d.stopAdmin()
	d.beside.Wait()
	return ignoreCanceled(<-d.adminOver)
}

// open lets connections in, when everything else runs.
func (d *daemon) open(ctx context.Context, p *posting) error {
	g := p.gateway
	g.heart.Beat(time.Now())
	if p.past == nil {
		select {
		case <-d.admin.Told(): // before what the gateway taken over from tells
		case <-ctx.Done():
			return nil
		}
		if err := d.before.TakeOver(ctx, g); err != nil {
			return err
		}
	} else if err := g.Activate(); err != nil {
		return err
	}
	if now := g.limits.MaxFlows(); g.carries() && now < g.cfg.Limits.MaxFlows {
		d.log.Warn("fewer flows than limits.max_flows: not enough descriptors", "flows", now, "max_flows", g.cfg.Limits.MaxFlows, "descriptors", process.DescriptorLimit())
	}
	if p.past == nil {
		d.opts.Manager.Ready()
	}
	if p.done != nil {
		p.done()
	}
	if p.asked != nil {
		p.asked <- nil
	}
	d.up(g)
	return nil
}

// up says that the gateway looks at connections, and what it has found.
func (d *daemon) up(g *gateway) {
	g.settlePromotion()
	g.servePromotion()
	mode := g.cfg.Mode
	if g.off.Load() {
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
		"rules", len(g.cfg.Policy), "shards", len(g.shards))
}

// idleEvery is how often it is looked whether a gateway that should carry nothing still
// does.
const idleEvery = 200 * time.Millisecond

// modeLoop puts configurations in force that are asked for, until ctx ends or a mode asks
// for another gateway, which it returns.
func (d *daemon) modeLoop(ctx context.Context, g *gateway) *posting {
	idle := time.NewTicker(idleEvery)
	defer idle.Stop()
	var rest handover.Backoff
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-idle.C:
			if !rest.Over(now) {
				continue
			}
			next, err := d.settle(g)
			if next != nil {
				return next
			}
			if rest.Note(err, time.Now()) {
				d.log.Warn("devices and ports stay although nothing is carried", "error", err)
			}
		case r := <-d.requests:
			rest = handover.Backoff{}
			if next := d.reload(g, r); next != nil {
				return next
			}
		}
	}
}

// settle prepares a gateway that counts in place of one that carries nothing any more,
// as its mode wants.
func (d *daemon) settle(g *gateway) (*posting, error) {
	now := g.live.Load()
	if d.ground == nil || !g.carries() || carries(now.Mode) || g.busy() {
		return nil, nil
	}
	done, err := d.admin.Change()
	if err != nil {
		return nil, nil //nolint:nilerr // another process takes over
	}
	next, err := d.prepare(now.Config, g.env.Keys.Load())
	if err != nil {
		done()
		return nil, err
	}
	d.log.Info("nothing is carried: devices and ports go", "mode", now.Mode)
	next.done = done
	return next, nil
}

// busy reports whether the gateway has to stay what it is.
func (g *gateway) busy() bool {
	if g.stopping.Load() || g.drainer.Draining() || g.host.Beside.HasNeighbour() {
		return true
	}
	flows, lingering, _ := g.left()
	return flows+lingering > 0
}

// reload puts a configuration in force. What is returned is to take the place of g.
func (d *daemon) reload(g *gateway, r request) *posting {
	done, err := d.admin.Change()
	if err != nil {
		r.answer <- err
		return nil
	}
	var next *posting
	if d.ground == nil || !carries(r.Mode) || g.carries() {
		err = g.reload(r.Config, r.keys)
	} else if err = g.cfg.CheckReload(r.Config, true); err == nil {
		next, err = d.prepare(r.Config, r.keys)
	}
	if next == nil {
		done()
		r.answer <- err
		return nil
	}
	next.asked, next.done = r.answer, done
	return next
}

// apply has the gateway that serves put a configuration in force, or another one in its
// place. It waits until the daemon ends.
func (d *daemon) apply(cfg config.Config, keys [][]byte) error {
	r := request{Config: cfg, keys: keys, answer: make(chan error, 1)}
	select {
	case d.requests <- r:
	case <-d.stopping:
		return errStopping
	}
	select {
	case err := <-r.answer:
		return err
	case <-d.stopping:
		return errStopping
	}
}
