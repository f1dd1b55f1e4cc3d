package gateway

import (
	"fmt"

	"github.com/smcgw/smcgw/gateway/admin"
)

// Set implements admin.Control.
func (g *gateway) Set(s admin.Setting) error {
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
