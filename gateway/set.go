package gateway

import (
	"fmt"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// Set implements admin.Control.
func (g *gateway) Set(s admin.Setting) error {
	if s.Name == admin.SettingShare {
		return g.setShare(s.Value)
	}
	g.reloading.Lock()
	defer g.reloading.Unlock()
	now := *g.live.Load()
	var err error
	if now.Log, err = now.Log.With(s.Name, s.Value); err != nil {
		return fmt.Errorf("%w: %w", admin.ErrSetting, err)
	}
	g.live.Store(&now)
	g.applyLog(now.Log)
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
