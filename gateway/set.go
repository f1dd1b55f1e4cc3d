package gateway

import (
	"fmt"
	"log/slog"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// Set implements admin.Control.
func (g *gateway) Set(s admin.Setting) error {
	switch s.Name {
	case admin.SettingLogLevel:
		return g.setLogLevel(s.Value)
	case admin.SettingShare:
		return g.setShare(s.Value)
	default:
		return fmt.Errorf("%w: %q is not known", admin.ErrSetting, s.Name)
	}
}

func (g *gateway) setLogLevel(name string) error {
	level, err := config.ParseLogLevel(name)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: %w", admin.ErrSetting, admin.SettingLogLevel, err)
	case g.logLevel == nil:
		return fmt.Errorf("%w: %s: the log of this gateway is not its own", admin.ErrSetting, admin.SettingLogLevel)
	}
	var to slog.Level
	if err := to.UnmarshalText([]byte(level)); err != nil {
		return fmt.Errorf("%w: %s: %w", admin.ErrSetting, admin.SettingLogLevel, err)
	}
	g.logLevel.Set(to)
	return nil
}

// setShare changes the share of the connections that is carried, until the configuration is
// read again. A ramp goes on from there.
func (g *gateway) setShare(percent string) error {
	share, err := config.ParseShare(percent)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", admin.ErrSetting, admin.SettingShare, err)
	}
	g.reloading.Lock()
	defer g.reloading.Unlock()
	r := g.live.Load().Rollout
	r.Percent = share
	return g.rollout.Begin(r)
}
