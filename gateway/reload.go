package gateway

import (
	"errors"
	"fmt"

	"golang.org/x/time/rate"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/negotiate"
)

// reload puts another configuration in force, whole or not at all. Connections
// that there are go on; those that begin are decided by the new one.
func (g *gateway) reload(next config.Config) error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if err := g.cfg.CheckReload(next, !g.carries() || g.dgrams.Load() != nil, !g.carries() || g.env.Auto != nil); err != nil {
		return err
	}
	keys, err := config.LoadKeys(next.Security.PSKFile)
	if err != nil {
		return err
	}
	g.look()
	now := g.live.Load()
	book, err := g.closeDecisions(now)
	if err != nil {
		return err
	}
	if err := g.trials.Configure(next); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if err := g.applyMode(next.Mode); err != nil {
		return errors.Join(fmt.Errorf("mode: %w", err), g.trials.Configure(now.Config))
	}
	g.live.Store(&liveConfig{Config: next, decided: book})
	g.rollout.Configure(next.Rollout)
	g.guard.Configure(next.Guard, g.totals())
	if err := g.steer.SetProofs(next.Limits.NewFlowsPerSecond); err != nil {
		g.log.Warn("rate of connections that peers begin", "error", err)
	}
	g.rate.SetLimit(rate.Limit(next.Limits.NewFlowsPerSecond))
	g.rate.SetBurst(next.Limits.NewFlowsPerSecond)
	g.peers.Configure(next.Limits)
	g.returnAdapters()
	if err := g.setKeys(keys); err != nil {
		g.log.Warn("peers that were refused for their keys", "error", err) // they are asked again later
	}
	return nil
}

// applyMode tells the programs and the datagrams, unless the gateway is going.
func (g *gateway) applyMode(m config.Mode) error {
	if g.stopping.Load() {
		return nil
	}
	if err := g.steer.SetMode(policy.Mode(m)); err != nil {
		return err
	}
	switch {
	case g.off.Load():
	case m == config.ModeEnforce:
		g.dgrams.Load().Resume()
	default:
		g.dgrams.Load().Quiesce(negotiate.ReasonMode)
	}
	return nil
}

// liveConfig is the configuration in force. It is never changed, but replaced.
type liveConfig struct {
	config.Config
	decided decisionBook
}

// decisionBook is what the policies before this one decided: the programs count
// by the number of the rule, which means another rule now.
type decisionBook struct {
	past  []admin.DecisionCount // by the rules that there were
	until map[int]ebpf.Decided  // how far the counters are theirs
}

// closeDecisions closes the book of the policy in force.
func (g *gateway) closeDecisions(now *liveConfig) (decisionBook, error) {
	c, err := g.steer.Counters()
	if err != nil {
		return decisionBook{}, fmt.Errorf("counters: %w", err)
	}
	var s admin.Snapshot
	now.addDecisions(&s, c.Decided)
	book := decisionBook{past: s.Decisions, until: map[int]ebpf.Decided{}}
	for _, d := range c.Decided {
		book.until[d.Rule] = d
	}
	return book, nil
}

// noRule is the name under which connections are counted that no rule matched:
// that of a last rule which says what happens anyway.
const noRule = "default"

// addDecisions adds what the programs decided, by rule. A rule that carries
// passes what the never-list takes out of it.
func (c *liveConfig) addDecisions(s *admin.Snapshot, list []ebpf.Decided) {
	for _, p := range c.decided.past {
		s.AddDecision(p.Action, p.Rule, p.Count)
	}
	for _, d := range list {
		name, action := noRule, config.ActionPass
		if d.Rule >= 0 && d.Rule < len(c.Policy) {
			name, action = c.Policy[d.Rule].Name, c.Policy[d.Rule].Action
		} else if d.Rule >= 0 {
			name, action = policy.TrialRule, config.ActionAccelerate
		}
		before := c.decided.until[d.Rule]
		s.AddDecision(action, name, d.Accelerate-before.Accelerate)
		s.AddDecision(config.ActionPass, name, d.Pass-before.Pass)
	}
}
