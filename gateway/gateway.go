package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/connlog"
	"github.com/smcgw/smcgw/gateway/internal/guard"
	"github.com/smcgw/smcgw/gateway/internal/handover"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/report"
)

// gateway decides, counts and serves operators for as long as the process lives. While its mode
// wants connections carried, it has an engine, which carries them.
//
//	counting ── reload: enforce ──► carrying
//	    ▲                              │ reload: observe or off
//	    └── nothing is carried ── carrying on, new connections native
type gateway struct {
	cfg   config.Config // at the start
	log   *slog.Logger
	site  *site
	host  *localHost // part of site
	steer host.Steering

	carrying atomic.Pointer[engine] // nil: nothing is carried
	live     atomic.Pointer[liveConfig]
	off      atomic.Bool
	stopping atomic.Bool
	legless  atomic.Bool   // sockets for app legs cannot be made
	nextID   atomic.Uint64 // last connection ID
	started  time.Time

	// What connections report, and what is reported about them.
	counters       *conn.Counters
	closed, native *report.History
	udp            pastDatagrams
	feed           *report.Feed
	lines          *connlog.Log
	tally          *report.Tally // counters of parts that have ended
	times          *loop.Times
	observed       *policy.Observed
	guard          *guard.Guard

	keys     *conn.Keyring
	rules    *policy.Rules
	rollout  *policy.Rollout
	refusals peers.Refusals
	pulse    loop.Pulse
	heart    loop.Heart

	reloads     *handover.Reloads
	renewal     *handover.Renewal
	incumbent   *handover.Incumbent
	drainer     *handover.Drainer
	logDropped  func() uint64
	setLogLevel func(slog.Level) // nil: it cannot be set

	// reloading is held while anything in effect changes: configuration, rules, off switch,
	// engine. It is taken before rules.mu.
	reloading sync.Mutex
	unsettled handover.Backoff // for settle, which only one goroutine calls
}

// newGateway builds everything, including an engine if the mode wants one; close undoes it.
// The heartbeat does not beat yet, so no connection is touched.
func newGateway(cfg config.Config, at *site, keys [][]byte, log *slog.Logger) (*gateway, error) {
	feed := report.NewFeed()
	history := func() *report.History { return report.NewHistory(report.HistorySize, feed) }
	g := &gateway{
		cfg: cfg, log: log, site: at, host: &at.localHost, steer: at.Steering, started: time.Now(),
		counters: conn.NewCounters(), closed: history(), native: history(), udp: pastDatagrams{closed: history(), native: history()},
		feed: feed, lines: connlog.New(log, cfg.Log), tally: new(report.Tally), times: new(loop.Times), observed: new(policy.Observed), guard: new(guard.Guard),
		keys: conn.NewKeyring(log), rules: policy.NewRules(cfg, at.Steering), rollout: policy.NewRollout(cfg.Rollout, at.Steering, log),
		refusals: peers.Refusals{Tell: at.Steering.Refuse}, reloads: new(handover.Reloads), drainer: handover.NewDrainer(),
		logDropped: func() uint64 { return 0 },
	}
	g.live.Store(&liveConfig{Config: cfg, since: time.Now()})
	g.host.promotion.Report(feed)
	g.heart = loop.Heart{Write: g.steer.Heartbeat, Pulse: &g.pulse, Log: log}
	g.incumbent = handover.NewIncumbent(g, log)
	g.renewal = &handover.Renewal{Log: log, Config: cfg, Apply: g.apply, Reloads: g.reloads, Incumbent: g.incumbent}
	g.guard.Configure(cfg.Guard, time.Now(), guard.Totals{})
	g.keys.Set(keys)
	if err := g.steer.SetProofs(cfg.Limits.NewFlowsPerSecond); err != nil {
		return nil, fmt.Errorf("rate of connections that peers begin: %w", err)
	}
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if carries(cfg.Mode) && at.canCarry() {
		if err := g.carryLocked(cfg); err != nil {
			return nil, err
		}
	}
	if err := g.followAdaptersLocked(); err != nil {
		g.endEngine()
		return nil, err
	}
	return g, nil
}

// crash ends the process as a failure, without a goroutine dump: the log has the stack.
func crash() { os.Exit(1) }

// engine returns the engine; nil: nothing is carried.
func (g *gateway) engine() *engine { return g.carrying.Load() }

// carries reports whether the gateway can carry. If not, it makes the programs count.
func (g *gateway) carries() bool { return g.engine() != nil }

// carryLocked makes an engine for a configuration that is about to take effect.
func (g *gateway) carryLocked(cfg config.Config) error {
	if err := g.site.carry(); err != nil {
		return err
	}
	e, err := newEngine(g, cfg)
	if err != nil {
		return errors.Join(err, g.site.count())
	}
	g.carrying.Store(e)
	g.heart.Watch(e.shards)
	g.times.Begin(e.shards)
	return nil
}

// endEngine ends the engine, if there is one. The caller holds reloading. The host keeps its
// devices and ports.
func (g *gateway) endEngine() {
	e := g.engine()
	if e == nil {
		return
	}
	e.close()
	g.tally.End(func(s *report.Snapshot) {
		e.parts(s)
		s.Devices = e.devices()
		g.carrying.Store(nil)
	})
	g.times.End()
	g.heart.Watch(nil)
	g.watchLegs()
	e.room.Note()
}

// settle ends the engine once the mode no longer carries and nothing is carried any more, and
// then makes the host release what carrying requires.
func (g *gateway) settle(now time.Time) {
	if carries(g.live.Load().Mode) || !g.carries() && !g.site.carrying() || !g.unsettled.Over(now) {
		return
	}
	_ = g.incumbent.Change(func() error { // not while another process is taking over
		g.reloading.Lock()
		defer g.reloading.Unlock()
		if live := g.live.Load(); carries(live.Mode) || time.Since(live.since) < drainGrace || g.busy() {
			return nil
		}
		if g.carries() {
			g.log.Info("nothing is carried: devices and ports go", "mode", g.mode())
			g.endEngine()
		}
		if err := g.site.count(); g.unsettled.Note(err, time.Now()) {
			g.log.Warn("devices and ports stay although nothing is carried", "error", err)
		}
		return nil
	})
}

// busy reports whether the gateway must stay as it is.
func (g *gateway) busy() bool {
	if g.stopping.Load() || g.drainer.Draining() || g.host.Beside != nil && g.host.Beside.HasNeighbour() {
		return true
	}
	flows, lingering, _ := g.left()
	return flows+lingering > 0
}

// close ends the gateway: nothing new is accepted, and the engine ends.
func (g *gateway) close() {
	g.stopping.Store(true)
	g.reloading.Lock() // wait for a reload in progress; later ones see that the gateway is stopping
	defer g.reloading.Unlock()
	g.endEngine()
	g.lines.Flush()
}
