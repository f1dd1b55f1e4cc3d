package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

func (g *gateway) Renew(ctx context.Context, always bool) (replaced bool, err error) {
	return g.renewal.Renew(ctx, always)
}

// apply is reload, but not while another process takes over.
func (g *gateway) apply(next config.Config, keys [][]byte) error {
	return g.incumbent.Change(func() error { return g.reload(next, keys) })
}

// reload puts another configuration into effect, completely or not at all. Existing
// connections continue; new ones follow the new configuration.
func (g *gateway) reload(next config.Config, keys [][]byte) error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if g.stopping.Load() {
		return errStopping
	}
	e := g.engine()
	if err := g.cfg.CheckReload(next, e == nil || e.wantsDatagrams()); err != nil {
		return err
	}
	g.lookLocked()
	live := g.live.Load()
	book, err := g.closeDecisions(live)
	if err != nil {
		return err
	}
	if err := g.rules.Configure(next); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	before := g.keys.Load()
	g.changeKeys(keys) // before an engine that is made uses them
	if err := g.applyMode(next); err != nil {
		g.changeKeys(before)
		return errors.Join(fmt.Errorf("mode: %w", err), g.rules.Configure(live.Config))
	}
	g.live.Store(&liveConfig{Config: next, since: time.Now(), decided: book, ahead: g.rules.Ahead()})
	if err := g.followAdaptersLocked(); err != nil {
		g.log.Warn("rules with action auto", "error", err) // the chores retry
	}
	g.applyLog(next.Log)
	g.rollout.Configure(next.Rollout)
	g.guard.Configure(next.Guard, time.Now(), g.totals())
	g.settlePromotion()
	if err := g.steer.SetCompare(next.Guard.Compares()); err != nil {
		g.log.Warn("compare connections", "error", err)
	}
	if err := g.steer.SetProofs(next.Limits.NewFlowsPerSecond); err != nil {
		g.log.Warn("rate of connections that peers begin", "error", err)
	}
	g.engine().configure(next.Limits)
	g.engine().returnAdapters()
	return nil
}

// applyLog changes what is logged from now on.
func (g *gateway) applyLog(c config.Log) {
	g.tellMissed() // with the old log settings
	g.lines.Configure(c)
	if g.setLogLevel != nil {
		g.setLogLevel(c.Level.Slog())
	}
}

// applyMode makes an engine for a mode that needs one, and puts the mode into effect.
func (g *gateway) applyMode(next config.Config) error {
	if !carries(next.Mode) || g.carries() || !g.site.canCarry() {
		return g.setMode(next.Mode)
	}
	if err := g.carryLocked(next); err != nil {
		return err
	}
	if err := g.setMode(next.Mode); err != nil {
		g.endEngine()
		return errors.Join(err, g.site.count())
	}
	return nil
}

// setMode tells the programs and the datagram engine, unless the gateway is ending.
func (g *gateway) setMode(m report.Mode) error {
	if g.stopping.Load() {
		return nil
	}
	if err := g.steer.SetMode(policy.Mode(m)); err != nil {
		return err
	}
	g.engine().settleDatagrams(m)
	return nil
}

// liveConfig is the configuration in effect. It is immutable and replaced as a whole.
type liveConfig struct {
	config.Config
	since   time.Time // when it came into effect
	decided policy.Decided
	ahead   int // number of opt-in rules before the configured ones
}

// rule returns the name and the action of the rule with this number in the programs.
func (c *liveConfig) rule(number int) (name string, action report.Action) {
	return policy.RuleOf(c.Policy, c.ahead, number)
}

// ruleName returns the name of the rule with this number in the programs.
func (c *liveConfig) ruleName(number int) string {
	name, _ := c.rule(number)
	return name
}

// addDecisions adds the decisions of the programs to s.
func (c *liveConfig) addDecisions(s *report.Snapshot, list []ebpf.Decided) {
	c.decided.AddTo(s, c.Policy, c.ahead, list)
}

// closeDecisions closes the book of decisions of the policy in effect.
func (g *gateway) closeDecisions(live *liveConfig) (policy.Decided, error) {
	c, err := g.steer.Counters()
	if err != nil {
		return policy.Decided{}, fmt.Errorf("counters: %w", err)
	}
	return live.decided.Close(live.Policy, live.ahead, c.Decided), nil
}

func (g *gateway) Set(s admin.Setting) error {
	if s.Name == admin.SettingShare {
		return g.setShare(s.Value)
	}
	g.reloading.Lock()
	defer g.reloading.Unlock()
	live := *g.live.Load()
	var err error
	if live.Log, err = live.Log.With(s.Name, s.Value); err != nil {
		return fmt.Errorf("%w: %w", admin.ErrSetting, err)
	}
	g.live.Store(&live)
	g.applyLog(live.Log)
	return nil
}

// setShare changes the share of connections that is carried, until the configuration is read
// again.
func (g *gateway) setShare(percent string) error {
	share, err := config.ParseShare(percent)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", admin.ErrSetting, admin.SettingShare, err)
	}
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if err := g.rollout.Set(share); err != nil {
		return err
	}
	g.host.promotion.Share(g.shareNow())
	return nil
}

// changeKeys is setKeys, but logs errors. Peers that it cannot forget are retried later.
func (g *gateway) changeKeys(keys negotiate.Keys) {
	if err := g.setKeys(keys); err != nil {
		g.log.Warn("peers that were refused for their keys", "error", err)
	}
}

// setKeys puts keys into effect: new handshakes and resolutions use them, and carried
// connections continue. Peers refused because of the old keys are tried again.
func (g *gateway) setKeys(keys negotiate.Keys) error {
	if !g.keys.Set(keys) {
		return nil
	}
	g.log.Info("keys changed", "keys", len(keys))
	e := g.engine()
	e.datagrams().SetKeys(keys)
	peers, err := g.steer.Peers()
	errs := []error{err}
	for _, p := range peers {
		if negotiate.Reason(p.Reason) == negotiate.ReasonAuthFailed {
			if e != nil {
				e.peers.Forget(p.Addr, p.Port)
			}
			errs = append(errs, g.steer.Forget(p.Addr, p.Port))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forget who had another key: %w", err)
	}
	return nil
}
