package gateway

import (
	"sync"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// OptIn implements admin.Control. It shifts the rules by one, so what the programs have
// counted by rule number is recorded first.
func (g *gateway) OptIn(o config.OptIn) (end func(), err error) {
	mount := g.cfg.CgroupPath
	if mount == "" {
		if mount, err = process.CgroupMount(); err != nil {
			return nil, err
		}
	}
	var leave func()
	if err := g.moveRules(func() (err error) {
		leave, err = g.trials.OptIn(o, mount)
		return err
	}); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		if err := g.moveRules(func() error { leave(); return nil }); err != nil {
			g.log.Warn("end of an opt-in", "cgroup", o.Cgroup, "error", err)
			leave()
		}
	}), nil
}

// moveRules makes a change to the opt-ins, after recording what was counted.
func (g *gateway) moveRules(change func() error) error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	g.lookLocked()
	now := g.live.Load()
	book, err := g.closeDecisions(now)
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	g.live.Store(&liveConfig{Config: now.Config, since: now.since, decided: book, ahead: g.trials.Ahead()})
	return nil
}
