package gateway

import (
	"context"
	"fmt"
	"os"
)

// Reloading is how a running daemon gets another configuration. The zero value
// never does.
type Reloading struct {
	// Wanted is received from whenever somebody wants it.
	Wanted <-chan os.Signal
	// Load reads and checks the configuration.
	Load func() (Config, error)
}

// reloadLoop puts new configurations in force until ctx ends. One that has any
// error is refused whole, and what was in force stays.
func (d *daemon) reloadLoop(ctx context.Context, g *gateway) {
	for {
		select {
		case <-d.opts.Reloading.Wanted:
		case <-ctx.Done():
			return
		}
		d.opts.Manager.Reloading()
		if err := d.reload(g); err != nil {
			d.log.Error("configuration not reloaded: the old one stays in force", "error", err)
		} else {
			d.log.Info("configuration reloaded")
		}
		d.opts.Manager.Ready()
	}
}

// reload does everything that can fail before anything that changes.
func (d *daemon) reload(g *gateway) error {
	cfg, err := d.opts.Reloading.Load()
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	keys, err := LoadKeys(cfg.Security.PSKFile)
	if err != nil {
		return err
	}
	return g.setKeys(keys)
}
