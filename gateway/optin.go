package gateway

import (
	"sync"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
)

// OptIn implements admin.Control. Rules move by one, so that what the programs have counted
// by their numbers is put down before.
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

// moveRules has a change of the opt-ins made, and puts down before what was counted.
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
